"""Debug mode makes the batches of a job with order="strict", treats bad elements as one does, and runs them again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.cli import main
from pecan_ray.engines.contract import BadElement
from pecan_ray.engines.in_process import InProcessEpoch, run_in_process
from pecan_ray.engines.positions import MOST_BAD
from pecan_ray.errors import ErrorBudgetError
from pecan_ray.job.queues import Queues
from pecan_ray.options import Config, IterOptions
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.in_step import read_in_step, why_not_in_step
from pecan_ray.plan.shape import plan_shape
from pecan_ray.plan.splits import Lease
from pecan_ray.quarantine import QuarantineFile
from pecan_ray.replay import quarantined, replay
from pecan_ray.runtime.session import job_spec
from pecan_ray.sources import Arrays, Items
from tests.unit.engines.engine_leases import run_engine

PROGRAM = """
import math
import numpy as np
import pecan_ray as pecan

def root(i):
    return math.sqrt(float(i))

pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(-3, 5))).map(root, on="i").batch(2)
"""


def jump(i: Any, rng: np.random.Generator) -> float:
    """Fail for some elements, as their random numbers have it."""
    return math.sqrt(float(rng.normal()) + float(i))


def jumping(tmp_path: Path, fn: Callable[..., Any] = jump) -> PecanPipeline:
    config = Config(quarantine_path=str(tmp_path / "bad.jsonl"), error_budget=1.0, reorder="off")
    return PecanPipeline(Arrays(i=np.zeros(12)), seed=5, config=config).map(fn, on="i", name="jump").batch(4)


@pytest.mark.parametrize("engine", ["python", "tensorflow"])
def test_a_debug_run_reports_the_elements_of_remainders_that_are_dropped(engine: Any) -> None:
    pipe = PecanPipeline(Arrays(i=np.arange(10)), engine=engine).batch(4, drop_remainder=True)
    batches = pipe.iter_batches(debug=True, epochs=2)
    assert len(list(batches)) == 4
    assert (batches.report().elements, batches.report().left_out_elements) == (16, 4)


def test_endless_epochs_over_nothing_end_and_a_rank_is_told_that_it_gets_all_batches(caplog: Any) -> None:
    assert list(PecanPipeline(Items([])).batch(2).iter_batches(epochs=None, debug=True)) == []
    pipe = PecanPipeline(Arrays(i=np.arange(5)), name="ranks")
    assert len(list(pipe.iter_batches(debug=True, rank=1, world_size=2))) == 5
    assert "ranks: debug=True: rank 1 of 2 gets all batches, not a part" in caplog.text


def test_a_quarantined_element_fails_again_with_its_own_random_numbers(tmp_path: Path) -> None:
    list(jumping(tmp_path).iter_batches(epochs=2, debug=True, on_error="quarantine"))
    kept = list(quarantined(tmp_path / "bad.jsonl"))
    assert {bad.origin.epoch for bad in kept if bad.origin} == {0, 1}
    drawn: list[float] = []

    def note(i: Any, rng: np.random.Generator) -> float:
        drawn.append(float(rng.normal()))
        return float(i)

    for bad in kept:
        again = replay(jumping(tmp_path).plan, bad, seed=5)
        assert isinstance(again.error, ValueError)
        assert replay(jumping(tmp_path, note).plan, bad, seed=5).error is None
    assert len(drawn) == len(kept) == len(set(drawn))
    assert max(drawn) < 0, "those that failed were those that drew a negative number"


def test_a_debug_run_counts_what_a_shuffle_holds_as_processed() -> None:
    def run(of: int) -> tuple[int, int]:
        pipe = PecanPipeline(Arrays(i=np.arange(3000)), config=Config(reorder="off", error_budget=0.15))
        pipe = pipe.map(lambda i: math.sqrt(-1.0 if int(i) % of == of - 1 else 1.0), on="i")
        batches = pipe.shuffle(500).batch(8).iter_batches(debug=True, on_error="skip")
        rows = sum(len(batch["i"]) for batch in batches)
        return rows, batches.report().bad_elements

    assert run(of=10) == (2700, 300)
    with pytest.raises(ErrorBudgetError):
        run(of=5)


def test_an_element_of_a_join_is_run_through_the_functions_of_its_side() -> None:
    left = PecanPipeline(Items([1.0])).map(float, on="item", name="left")
    right = PecanPipeline(Items([-1.0])).map(math.sqrt, on="item", name="right")
    pipe = left.concat(right).map(float, on="item", name="behind").batch(2)
    batches = pipe.iter_batches(debug=True, on_error="skip")
    list(batches)
    assert batches.report().bad_elements == 1, "at the end, where no batch brings it"
    (bad,) = [bad for made in InProcessEpoch(pipe.plan, on_error="quarantine").produced() for bad in made.bad]
    assert isinstance(replay(pipe.plan, bad).error, ValueError)


def test_a_graph_is_run_again_too() -> None:
    tf = pytest.importorskip("tensorflow")

    def positive(item: Any) -> Any:
        tf.debugging.assert_positive(item, message="not positive")
        return item

    pipe = PecanPipeline(Items([1.0, -1.0, 2.0]), engine="tensorflow").map(positive, on="item").batch(2)
    failing, passing = (BadElement("positive", "an element", "", {"item": item}) for item in (-1.0, 1.0))
    assert "not positive" in str(replay(pipe.plan, failing, engine="tensorflow").error)
    assert replay(pipe.plan, passing, engine="tensorflow").error is None


def test_the_command_shows_what_still_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quarantine = tmp_path / "bad.jsonl"
    bad = [BadElement("root", f"element {i} of split 0", "ValueError", {"i": i - 3}) for i in range(3)]
    file = QuarantineFile(quarantine, "a job")
    file.add(bad)
    file.close()
    (tmp_path / "broken.py").write_text(PROGRAM)
    assert main(["replay", str(quarantine), str(tmp_path / "broken.py")]) == 1
    said = capsys.readouterr().out
    assert said.count("element 0 of split 0 in root:") == 1
    assert "return math.sqrt(float(i))" in said
    assert "3 still fail, 0 do not fail any more" in said
    ran = tmp_path / "ran.py"
    ran.write_text(f"open({str(tmp_path / 'has run')!r}, 'w').close()\n")
    for wrong in ("absent", "ran.py"):
        assert main(["replay", str(tmp_path / wrong), str(ran)]) == 2
    assert not (tmp_path / "has run").exists(), "the file is looked at before the program runs"
    assert "cannot read the quarantine file" in capsys.readouterr().err


def test_a_mistake_in_the_pipeline_ends_a_debug_run_before_the_data_has_been_gone_through() -> None:
    calls = []

    def wrong(x: Any) -> Any:
        calls.append(x)
        raise ValueError("always")

    pipe = PecanPipeline(Arrays(x=np.arange(20_000))).map(wrong, on="x").batch(10)
    with pytest.raises(ErrorBudgetError, match="more than the error budget allows"):
        list(pipe.iter_batches(on_error="skip", debug=True))
    assert len(calls) == MOST_BAD


SEED = 5


def numbers(rows: int = 300, first: int = 0, split_rows: int = 37, key: str = "i") -> pecan.PecanPipeline:
    return pecan.PecanPipeline(
        pecan.sources.Arrays(**{key: np.arange(first, first + rows)}, split_rows=split_rows), seed=SEED
    )


def noisy(i: Any, rng: np.random.Generator) -> Any:
    return i + rng.random()


def spread(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for part in range(int(row["i"]) % 3):
        yield {"i": row["i"] + part / 10}


def by_queues(pipe: pecan.PecanPipeline, epoch: int) -> list[dict[str, Any]]:
    """Make an epoch of the leases that a job gives to the only worker that it has."""
    plan = pipe.plan if why_not_in_step(pipe.plan, "python", "raise") else read_in_step(pipe.plan)
    sources, shape = plan.split_sources(), plan_shape(plan)
    options = IterOptions(order="strict", epochs=3)
    queues = Queues(job_spec("job", shape, sources, "python", SEED, Config(), options).shape)
    for branch, source in enumerate(sources):
        queues.add(branch, list(source.splits()))
        queues.end_listing(branch)
    queues.begin_epoch(epoch)
    leases: list[Lease] = []
    for branch in range(len(sources)):
        while isinstance(lease := queues.take("worker", branch), Lease):
            leases.append(lease)
    produced = run_engine(plan, leases, order="strict", threads=3, seed=SEED)
    return [one.columns for one in produced if one.rows and not (one.partial and shape.drop_remainder)]


PLANS: dict[str, Callable[[], pecan.PecanPipeline]] = {
    "plain": lambda: numbers().map(noisy, on="i").batch(8),
    "shuffled": lambda: numbers().map(noisy, on="i").shuffle(60).batch(8),
    "in a fixed order": lambda: numbers().shuffle(60, reshuffle=False).batch(8, drop_remainder=True),
    "repeated": lambda: numbers().repeat(2).shuffle(60).map(noisy, on="i").batch(8, drop_remainder=True),
    "mixed": lambda: numbers().mix(numbers(200, 1000, 11), weights=[1, 2]).shuffle(10).batch(8),
    "concatenated": lambda: numbers().shuffle(20, seed=1).concat(numbers(200, 1000, 11)).shuffle(10).batch(8),
    "zipped": lambda: numbers().shuffle(50).zip(numbers(300, 0, 11, "j").shuffle(50, seed=1)).batch(8),
    "in step": lambda: numbers().map(noisy, on="i").zip(numbers(300, 0, 11, "j")).shuffle(50).batch(8),
    "taken": lambda: numbers().shuffle(50).take(70).map(noisy, on="i").batch(8),
    "spread": lambda: numbers().shuffle(30).flat_map(spread).filter(lambda row: row["i"] % 5 > 0).batch(8),
    "a part": lambda: pecan.split(numbers(), [0.7, 0.3], seed=1)[0].shuffle(30).map(noisy, on="i").batch(8),
    "batched twice": lambda: numbers().shuffle(30).batch(4).unbatch().shuffle(9).batch(8),
}


@pytest.mark.parametrize("plan", PLANS)
def test_debug_mode_makes_the_batches_of_a_job_in_one_sequence(plan: str) -> None:
    pipe = PLANS[plan]()
    for epoch in (0, 2):
        debug, job = list(run_in_process(pipe.plan, seed=SEED, epoch=epoch)), by_queues(pipe, epoch)
        assert [batch.keys() for batch in debug] == [batch.keys() for batch in job]
        for one, other in zip(debug, job, strict=True):
            assert all(np.array_equal(one[name], other[name]) for name in one)
