"""Passes over a pipeline are numbered in a program, in whatever way it is iterated over."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from pecan_ray import pass_numbers
from pecan_ray.engines.inprocess import run_inprocess
from pecan_ray.errors import OpError, PlanError
from pecan_ray.pass_numbers import PassCounts, remind_of_new_count
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.sources import Arrays

ROWS, BATCH, PASSES = 12, 4, 3
STEPS = ROWS // BATCH
Draws = list[list[float]]
"""Of each pass, the random number of each row, in the order in which they came."""
Way = Callable[[PecanPipeline], Draws]


def draw(i: Any, rng: np.random.Generator) -> Any:
    return np.float32(rng.random())


def noisy() -> PecanPipeline:
    """A pipeline whose values and order tell the pass."""
    return PecanPipeline(Arrays(x=np.arange(ROWS)), name="noisy").map(draw, on="x").shuffle(ROWS).batch(BATCH)


def of_passes(pipe: PecanPipeline, *numbers: int) -> Draws:
    """What the engine makes of passes of these numbers."""
    return [floats(run_inprocess(pipe.plan, epoch=number)) for number in numbers]


def floats(batches: Any) -> list[float]:
    return [float(x) for batch in batches for x in batch["x"]]


def one_after_the_other(batches: Iterator[Any]) -> Draws:
    draws = floats(batches)
    return [draws[at : at + ROWS] for at in range(0, len(draws), ROWS)]


def calls(pipe: PecanPipeline) -> Draws:
    return [floats(pipe.iter_batches(debug=True)) for _ in range(PASSES)]


def one_call(pipe: PecanPipeline) -> Draws:
    return one_after_the_other(pipe.iter_batches(epochs=PASSES, debug=True))


def a_call_of_several_epochs_that_was_left(pipe: PecanPipeline) -> Draws:
    with pipe.iter_batches(epochs=None, debug=True) as batches:
        first = floats(next(batches) for _ in range(STEPS))
        second = next(batches)
    return [first, floats([second]), *[floats(pipe.iter_batches(debug=True)) for _ in range(PASSES - 2)]]


def loops_that_are_left(pipe: PecanPipeline) -> Draws:
    return [floats([next(iter(pipe.iter_batches(debug=True)))]) for _ in range(PASSES)]


def another_config_for_each_pass(pipe: PecanPipeline) -> Draws:
    return [floats(pipe.with_config(error_budget=n / 10).iter_batches(debug=True)) for n in range(PASSES)]


def awaited(pipe: PecanPipeline) -> Draws:
    async def one() -> list[Any]:
        return [batch async for batch in pipe.iter_batches_async(debug=True)]

    return [floats(asyncio.run(one())) for _ in range(PASSES)]


def torch_passes(pipe: PecanPipeline) -> Draws:
    data = pipe.to_torch(debug=True)
    return [floats(data) for _ in range(PASSES)]


def torch_data_sets(pipe: PecanPipeline) -> Draws:
    return [floats(pipe.to_torch(debug=True)) for _ in range(PASSES)]


def torch_closed(pipe: PecanPipeline) -> Draws:
    data, found = pipe.to_torch(debug=True), []
    for _ in range(PASSES):
        found.append(floats(data))
        data.close()
    return found


def torch_loader(pipe: PecanPipeline) -> Draws:
    data: Any = pytest.importorskip("torch.utils.data")
    loader = data.DataLoader(pipe.to_torch(debug=True), batch_size=None, num_workers=0)
    return [floats(loader) for _ in range(PASSES)]


def tf_passes(pipe: PecanPipeline) -> Draws:
    pytest.importorskip("tensorflow")
    data = pipe.to_tf_dataset(debug=True)
    return [floats(data.as_numpy_iterator()) for _ in range(PASSES)]


def tf_data_sets(pipe: PecanPipeline) -> Draws:
    pytest.importorskip("tensorflow")
    return [floats(pipe.to_tf_dataset(debug=True).as_numpy_iterator()) for _ in range(PASSES)]


def keras_epochs(pipe: PecanPipeline) -> Draws:
    pytest.importorskip("keras")
    data = pipe.to_keras("x", debug=True)
    return [[float(x) for (batch,) in data for x in batch] for _ in range(PASSES)]


def keras_data_sets(pipe: PecanPipeline) -> Draws:
    pytest.importorskip("keras")
    found = []
    for _ in range(PASSES):
        data = pipe.to_keras("x", debug=True)
        found.append([float(x) for (batch,) in data for x in batch])
        data.close()
    return found


def lightning_fits(pipe: PecanPipeline) -> Draws:
    """Two epochs of one `fit`, and one of another."""
    pl: Any = pytest.importorskip("pytorch_lightning")
    torch: Any = pytest.importorskip("torch")
    from pecan_ray.integrations.lightning_data import PecanDataModule

    seen: list[float] = []

    class Noting(pl.LightningModule):  # type: ignore[misc]  # Lightning is imported where it is installed
        def training_step(self, batch: Any, _: int) -> Any:
            seen.extend(batch["x"].tolist())
            return self.weight**2

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD([self.weight], 0.1)

    for epochs in (2, 1):
        model = Noting()
        model.weight = torch.nn.Parameter(torch.zeros(()))
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
        trainer = pl.Trainer(**quiet, enable_checkpointing=False, max_epochs=epochs)
        trainer.fit(model, datamodule=PecanDataModule(pipe, options={"debug": True}))
    return [seen[at : at + ROWS] for at in range(0, len(seen), ROWS)]


def evaluations(pipe: PecanPipeline) -> Draws:
    from pecan_ray.integrations.evaluation import EvaluationBatches

    data = EvaluationBatches(lambda: pipe.iter_batches(debug=True), None)
    return [floats(data) for _ in range(PASSES)]


def transformers_trainings(pipe: PecanPipeline) -> Draws:
    """Two epochs of one training, and one of another."""
    pytest.importorskip("transformers")
    from pecan_ray.integrations.transformers_trainer import TrainerEpochs

    data, found = TrainerEpochs(pipe, {"debug": True}), []
    for epochs in (2, 1):
        data.begin({"epochs": epochs, "device": None}, None)
        found += [floats(data) for _ in range(epochs)]
        data.close()
    return found


def ray_train_shard(pipe: PecanPipeline) -> Draws:
    from pecan_ray.integrations.ray_train import PipelineShard

    shard = PipelineShard(pipe, {"rank": 0, "world_size": 1, "job": "shard"}, PASSES, {"debug": True})
    return [floats(shard.iter_batches()) for _ in range(PASSES)]


WAYS: tuple[Way, ...] = (
    calls,
    one_call,
    a_call_of_several_epochs_that_was_left,
    loops_that_are_left,
    another_config_for_each_pass,
    awaited,
    torch_passes,
    torch_data_sets,
    torch_closed,
    torch_loader,
    tf_passes,
    tf_data_sets,
    keras_epochs,
    keras_data_sets,
    lightning_fits,
    evaluations,
    transformers_trainings,
    ray_train_shard,
)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_each_pass_has_the_next_number_and_a_program_that_runs_again_gets_the_same(way: Way) -> None:
    for pipe in (noisy(), noisy()):
        found = way(pipe)
        for number, (draws, wanted) in enumerate(zip(found, of_passes(pipe, *range(PASSES)), strict=True)):
            assert draws == wanted[: len(draws)], f"pass {number}"
        assert floats(pipe.iter_batches(debug=True)) == of_passes(pipe, PASSES)[0], "it goes on in another way"


# --- which number is next ------------------------------------------------------------------------------------


def test_a_pass_that_is_said_is_that_one_and_the_next_one_has_not_been_before() -> None:
    pipe = noisy()
    said = [None, None, 0, None, 7, None]
    found = [floats(pipe.iter_batches(first_epoch=first, debug=True)) for first in said]
    assert found == of_passes(pipe, 0, 1, 0, 2, 7, 8)
    assert floats(pipe.to_torch(first_epoch=3, debug=True)) == of_passes(pipe, 3)[0]
    with pytest.raises(PlanError, match="first_epoch needs a whole number"):
        pipe.iter_batches(first_epoch=-1)


def test_pipelines_with_other_operators_or_another_source_count_apart() -> None:
    pipe = noisy()
    plain = PecanPipeline(Arrays(x=np.arange(ROWS)), name="noisy").map(draw, on="x").batch(BATCH)
    calls(pipe)
    assert floats(plain.iter_batches(debug=True)) == of_passes(plain, 0)[0]
    base = PecanPipeline(Arrays(x=np.arange(ROWS)))
    train, val = base.map(draw, on="x").batch(3), base.map(draw, on="x").batch(4)
    assert [floats(one.iter_batches(debug=True)) for one in (train, val)] == [
        *of_passes(train, 0),
        *of_passes(val, 0),
    ]


def test_a_pipeline_that_is_derived_again_for_each_pass_goes_on() -> None:
    base, found = PecanPipeline(Arrays(x=np.arange(ROWS))).map(draw, on="x"), []
    for _ in range(PASSES):
        again = base.map(lambda x: x, on="x", name="same").batch(BATCH)
        found.append(floats(again.iter_batches(debug=True)))
    assert found == of_passes(again, *range(PASSES))


def test_a_look_at_single_batches_or_at_speed_is_no_pass() -> None:
    pipe = noisy()
    pipe.peek()
    assert next(pipe.iter_batches(headspace=2))["x"].tolist() == of_passes(pipe, 0)[0][:BATCH]
    assert floats(pipe.iter_batches(debug=True)) == of_passes(pipe, 0)[0]


def test_an_unpickled_pipeline_counts_anew() -> None:
    pipe = noisy()
    calls(pipe)
    copy = pickle.loads(pickle.dumps(pipe))
    assert floats(copy.iter_batches(debug=True)) == of_passes(pipe, 0)[0]
    assert floats(pipe.iter_batches(debug=True)) == of_passes(pipe, PASSES)[0]


def test_a_call_that_was_refused_was_no_pass() -> None:
    pipe = noisy()
    with pytest.raises(PlanError):
        pipe.iter_batches(share=True, world_size=2, rank=0)
    with pytest.raises(PlanError):
        pipe.iter_batches(debug=True, state={})
    assert floats(pipe.iter_batches(debug=True)) == of_passes(pipe, 0)[0]


def test_a_pass_that_fails_was_one() -> None:
    def at_three(i: Any, rng: np.random.Generator) -> Any:
        if i == 3:
            raise ValueError
        return rng.random()

    pipe = PecanPipeline(Arrays(x=np.arange(4))).map(at_three, on="x")
    for number in range(2):
        batches = pipe.iter_batches(debug=True)
        assert next(batches) == next(run_inprocess(pipe.plan, epoch=number))
        with pytest.raises((ValueError, OpError)):
            list(batches)


def test_ranks_agree_also_in_one_process_and_where_one_has_looked_alone() -> None:
    counts, parts = PassCounts(), (("operator map", "0123"),)
    assert counts.begin(parts, (0, 1)).first_epoch == 0
    for number in range(2):
        assert [counts.begin(parts, (rank, 2)).first_epoch for rank in range(2)] == [number] * 2


def test_a_run_that_could_not_begin_leaves_its_number_to_the_next_one() -> None:
    counts, parts, place = PassCounts(), (("operator map", "0123"),), (0, 1)
    counts.begin(parts, place, 4)
    with pytest.raises(KeyboardInterrupt), counts.begin(parts, place):
        raise KeyboardInterrupt
    assert counts.begin(parts, place).first_epoch == 5


def test_a_state_sets_the_count_to_where_it_was_taken() -> None:
    counts, parts, place = PassCounts(), (("operator map", "0123"),), (0, 1)
    counts.begin(parts, place, 9)
    assert counts.resume(parts, place, 3, first_epoch=2, ended=False).first_epoch == 2
    assert counts.begin(parts, place).first_epoch == 4
    assert counts.resume(parts, place, 5, first_epoch=4, ended=True).first_epoch == 4
    resumed = counts.resume(parts, place, 5, first_epoch=0, ended=False)
    resumed.reach(7)
    assert counts.begin(parts, place).first_epoch == 8


def test_a_pipeline_that_is_made_again_for_each_epoch_is_told_of_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pass_numbers, "_newest", {})
    monkeypatch.setattr(pass_numbers, "_reminded", set())
    parts = (("operator map", "0123"),)
    with caplog.at_level(logging.WARNING, "pecan_ray"):
        for epoch in range(4):
            remind_of_new_count("rows", parts, PassCounts(), begins_anew=epoch != 1)
            assert len(caplog.messages) == (epoch > 1)
        kept = PassCounts()
        remind_of_new_count("two", parts, kept, begins_anew=True)
        remind_of_new_count("two", parts, PassCounts(), begins_anew=True)
    assert len(caplog.messages) == 1 and caplog.messages[0].startswith("rows: this pipeline was made again")
