"""Jobs that share on real nodes: a group makes each batch once, whoever reads it, lags, comes late, leaves or dies."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import ray

import pecan_ray as pecan
from pecan_ray.cli import main
from pecan_ray.errors import ClusterError, PlanError
from pecan_ray.run_of_reader import ReaderRun
from pecan_ray.runtime import cluster
from tests.long_form import some_later
from tests.node_start import tried_twice
from tests.ray.conftest import living_actors
from tests.ray.waiting import ENDS_S, until

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

BATCHES, EACH = 24, 8
WORKERS = pecan.Workers(local=1)
LINGER_S = 0.5


@pytest.fixture(autouse=True)
def no_group_left() -> Iterator[None]:
    """Checks that a group ends when its last reader has left."""
    yield
    until(lambda: not groups(), lambda: f"{groups()} have not ended")


@pytest.fixture
def no_actor_left() -> Iterator[None]:
    """Checks that a test leaves no actor of ours alive."""
    yield
    until(lambda: not living_actors(), lambda: f"{living_actors()} are still alive")


def groups() -> list[str]:
    return [name for name in living_actors() if name.startswith("pecan:share:")]


def pipe_of(folder: Path, name: str = "shared", **settings: Any) -> pecan.PecanPipeline:
    """A pipeline that writes down each element that it computes."""
    calls = str(folder / "calls")

    def compute(value: dict[str, Any]) -> dict[str, Any]:
        with open(calls, "a") as file:
            file.write(f"{value['i']}\n")
        return {"i": value["i"], "x": np.full(300, value["i"], np.float32), "text": str(value["i"])}

    config = pecan.Config(**{"share_linger_s": LINGER_S, "reorder": "off", **settings})
    source = pecan.sources.Arrays(i=np.arange(BATCHES * EACH))
    return pecan.PecanPipeline(source, name=name, config=config).map(compute).batch(EACH)


def calls(folder: Path) -> Counter[int]:
    return Counter(map(int, (folder / "calls").read_text().split()))


def elements(batches: Any) -> list[int]:
    return sorted(int(i) for batch in batches for i in batch["i"])


def epochs_and_elements(batches: Any, most: int | None = None) -> list[tuple[int, int]]:
    """Of all batches, or so many, the epochs and the elements."""
    return [(batches.provenance.epoch, int(i)) for batch in islice(batches, most) for i in batch["i"]]


def wholly(epochs: int = 1) -> list[int]:
    return sorted(list(range(BATCHES * EACH)) * epochs)


def test_readers_in_step_get_all_and_each_element_is_computed_once_and_another_pipeline_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        pipe_of(tmp_path).iter_batches(share=True, workers=WORKERS) as one,
        pipe_of(tmp_path, "other name").iter_batches(share=True, format="torch") as two,
        pipe_of(tmp_path).iter_batches(share=True) as three,
    ):
        (name,) = (group.removeprefix("pecan:share:") for group in groups())
        with pytest.raises(PlanError, match=r"it has no operator unbatch where this one has operator unbatch \w+\."):
            pipe_of(tmp_path).unbatch().batch(3).iter_batches(share=name)
        with pytest.raises(PlanError, match=r"\(max_lag=...\) None where this one has iter_batches\(max_lag=...\) 5"):
            pipe_of(tmp_path).iter_batches(share=name, max_lag=5)
        assert main(["status"]) == 0
        assert ": pipeline shared" in (printed := capsys.readouterr().out) and "3 readers" in printed
        assert main(["stop"]) == 1 and "has 3 readers" in capsys.readouterr().out
        found = list(zip(one, two, three, strict=True))
        told = [batches.report() for batches in (one, two, three)]
    for place in range(3):
        assert elements(row[place] for row in found) == wholly()
    assert calls(tmp_path) == Counter(range(BATCHES * EACH)), "each once"
    for report in told:
        assert report.shared is not None
        assert (report.shared.read, report.shared.skipped, report.batches) == (BATCHES, 0, BATCHES)
        assert "read 24 batches and skipped 0" in str(report) and report.cost is None
        assert [worker.placement for worker in report.workers.values()] == ["local"]
    first, of_torch = found[0][0], found[0][1]
    assert first["text"].tolist() == [str(i) for i in first["i"]]
    with pytest.raises(ValueError, match="read-only"):
        first["x"][0] = 1.0
    of_torch["x"][0] = -1.0
    assert first["x"].min() >= 0, "torch has a copy"


def test_what_a_slow_reader_lacks_waits_on_disk(tmp_path: Path) -> None:
    on_disk: dict[str, Any] = {"share_window_bytes": 60_000, "share_disk_bytes": 1 << 30}  # a batch takes 12 KB
    with (
        pipe_of(tmp_path, **on_disk).iter_batches(share="on-disk", workers=WORKERS) as fast,
        pipe_of(tmp_path, **on_disk).iter_batches(share="on-disk") as slow,
    ):
        first = next(slow)
        assert elements(fast) == wholly(), "it is not held back"
        assert elements([first, *slow]) == wholly()
        shared = slow.report().shared
        assert shared is not None and (shared.read, shared.skipped) == (BATCHES, 0)


def rank_of_trial(
    pipe: pecan.PecanPipeline, trial: str, rank: int, joined: Callable[[], object] = bool
) -> list[tuple[int, int]]:
    """Return what one of two ranks of a trial gets in two epochs; `joined`: is called before it reads."""
    of: dict[str, Any] = {"job": trial, "rank": rank, "world_size": 2}
    with pipe.iter_batches(share="trials", max_lag=2, epochs=2, workers=WORKERS, **of) as batches:
        joined()
        return epochs_and_elements(batches)


@ray.remote(num_cpus=1)
class Trainer:
    """A trainer in a process of its own."""

    def read(self, pipe: pecan.PecanPipeline, name: str) -> tuple[list[int], bool, Any]:
        with pipe.iter_batches(share=name, max_lag=2, epochs=2) as batches:
            found = list(batches)
            return elements(found), found[0]["x"].flags.writeable, batches.report().shared

    def rank(self, pipe: pecan.PecanPipeline, trial: str, rank: int) -> list[tuple[int, int]]:
        """Read as one of two ranks of a trial."""
        return rank_of_trial(pipe, trial, rank)

    def begin(self, pipe: pecan.PecanPipeline, name: str, count: int) -> int:
        """Read some batches, and no more."""
        self.batches = pipe.iter_batches(share=name, max_lag=2, epochs=2)
        self.held = list(islice(self.batches, count))
        return os.getpid()

    def go_on(self) -> list[tuple[int, int]]:
        """Read what is left; return all epochs and elements."""
        found = [(0, int(i)) for batch in self.held for i in batch["i"]]
        self.held.clear()
        with self.batches:
            return sorted(found + epochs_and_elements(self.batches))


@pytest.fixture
def by_value() -> Iterator[None]:
    """Trainers in other processes cannot import this module."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def trainer(*, here: bool = False, node: str = "") -> Any:
    mine = ray.get_runtime_context().get_node_id()
    actor: Any = Trainer
    return actor.options(label_selector={"ray.io/node-id": node or (mine if here else f"!in({mine})")}).remote()


@pytest.mark.usefixtures("by_value")
def test_a_reader_that_is_killed_holds_nobody_back_and_one_on_another_node_gets_the_same(tmp_path: Path) -> None:
    pipe = pipe_of(tmp_path, trainer_timeout_s=10.0)
    killed, far = trainer(here=True), trainer(here=False)
    with pipe.iter_batches(share="killed", max_lag=2, epochs=2, workers=WORKERS) as batches:
        pid = ray.get(killed.begin.remote(pipe, "killed", 2))
        asked = far.read.remote(pipe, "killed")
        seen = list(islice(batches, 2))
        os.kill(pid, signal.SIGKILL)
        assert elements([*seen, *batches]) == wholly(2)
        report = batches.report()
        found, writeable, shared = ray.get(asked)
    assert report.shared is not None and report.shared.skipped == 0 and report.shared.readers <= 2
    assert found == wholly(2) and not writeable and (shared.read, shared.skipped) == (2 * BATCHES, 0)
    ray.kill(far)


@pytest.mark.usefixtures("by_value")
def test_the_ranks_of_four_trials_divide_what_one_run_makes_also_on_another_node(tmp_path: Path) -> None:
    pipe, far = pipe_of(tmp_path), trainer(here=False)
    # The group lives as long as one of these waits for the rank on the other node.
    all_here = threading.Barrier(7, timeout=ENDS_S)
    with ThreadPoolExecutor(7) as pool:
        places = [(trial, rank) for trial in "abcd" for rank in range(2)]
        here = [pool.submit(rank_of_trial, pipe, *place, all_here.wait) for place in places[:-1]]
        elsewhere = ray.get(far.rank.remote(pipe, *places[-1]))
        found = [*(one.result() for one in here), elsewhere]
    began = min(found[0])[0]  # calls of one program are passes, which begin in the order of the threads
    each = sorted((began + epoch, i) for epoch in range(2) for i in range(BATCHES * EACH))
    for trial in range(4):
        first, second = found[2 * trial : 2 * trial + 2]
        assert len(first) == len(second) and sorted(first + second) == each, "disjoint, and all of it"
    assert calls(tmp_path) == dict.fromkeys(range(BATCHES * EACH), 2), "each once an epoch, for all of them"
    ray.kill(far)


def test_ranks_of_a_trial_get_batches_in_turn_and_in_order_of_filtered_lines_from_several_workers(
    tmp_path: Path,
) -> None:
    texts = [f"{file}-{line}" for file in range(6) for line in range(40)]
    for file in range(6):
        of_file = [text for text in texts if text.startswith(f"{file}-")]
        (tmp_path / f"{file}.txt").write_text("".join(f"{text}\n" for text in of_file))
    began = threading.Barrier(2, timeout=ENDS_S)

    def odd_ones(element: dict[str, Any]) -> bool:
        # What one worker reads at first takes long, so what others read behind it is ready before.
        if element["text"].startswith("0-"):
            time.sleep(0.02)
        return bool(int(element["text"][-1]) % 2)

    def both_cases(element: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"text": f"{case}{element['text']}"} for case in "aB"]

    source = pecan.sources.TextLines(str(tmp_path / "*.txt"), split_bytes=60)
    config = pecan.Config(share_linger_s=LINGER_S, reorder="off")
    pipe = pecan.PecanPipeline(source, name="lines", config=config).filter(odd_ones).flat_map(both_cases).batch(EACH)

    def read(rank: int) -> list[list[str]]:
        of: dict[str, Any] = {"job": "in-order", "rank": rank, "world_size": 2, "workers": pecan.Workers(local=2)}
        with pipe.iter_batches(share="in-order", max_lag=8, **of) as batches:
            began.wait()
            return [batch["text"].tolist() for batch in batches]

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(read, range(2)))
    rows = [f"{case}{text}" for text in texts if int(text[-1]) % 2 for case in "aB"]
    expected = [rows[begin : begin + EACH] for begin in range(0, len(rows), EACH)]
    assert len(expected) % 2 == 0 and found == [expected[0::2], expected[1::2]]


def test_ranks_that_lose_their_group_are_told_for_none_knows_what_the_others_have_had(tmp_path: Path) -> None:
    pipe = pipe_of(tmp_path)
    of: dict[str, Any] = {"job": "a", "rank": 0, "world_size": 2}
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(rank_of_trial, pipe, "a", 1)
        with pipe.iter_batches(share="trials", max_lag=2, epochs=2, workers=WORKERS, **of) as batches:
            next(batches)
            assert isinstance(batches._run, ReaderRun)
            _, pid = ray.get(batches._run.session.producer.place.remote())
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(ClusterError, match=r"is gone: its process .* Start the run again"):
                list(batches)
        with pytest.raises(ClusterError, match="is gone"):
            other.result()


@pytest.mark.usefixtures("by_value")
@pytest.mark.parametrize("lost", some_later(["process", "node"], "process"))
def test_where_a_group_is_lost_its_readers_go_on_with_what_they_have_not_had(
    three_nodes: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, lost: str
) -> None:
    spare = tried_twice(partial(three_nodes.add_node, num_cpus=4, object_store_memory=100 << 20))
    three_nodes.wait_for_nodes()
    pipe, far = pipe_of(tmp_path), trainer(node=spare.node_id)
    ray.get(far.begin.remote(pipe, "lost", 2))
    try:
        with pipe.iter_batches(share="lost", max_lag=2, epochs=2) as batches:
            rest_of_far = far.go_on.remote()
            found = epochs_and_elements(batches, 10)
            assert isinstance(batches._run, ReaderRun)
            node, pid = ray.get(batches._run.session.producer.place.remote())
            assert node == spare.node_id
            if lost == "node":
                three_nodes.remove_node(spare, allow_graceful=False)
                # Before that Ray tells of the process alone.
                until(lambda: spare.node_id not in cluster.alive_nodes(), "Ray does not see that the node is lost")
            else:
                os.kill(pid, signal.SIGKILL)
            found += epochs_and_elements(batches)
            shared = batches.report().shared
        each = sorted((epoch, i) for epoch in range(2) for i in range(BATCHES * EACH))
        assert sorted(found) == each, caplog.text
        assert shared is not None and (shared.read, shared.skipped) == (2 * BATCHES, 0), (found, caplog.text)
        assert f"is gone: its {lost} " in caplog.text
        if lost == "process":
            assert ray.get(rest_of_far) == each
    finally:
        if lost == "process":
            ray.kill(far)
            three_nodes.remove_node(spare)


@pytest.mark.usefixtures("by_value")
def test_a_reader_that_stands_still_is_left_behind_and_reads_the_rest_when_it_comes_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pipe, still = pipe_of(tmp_path, share_patience_s=6.0), trainer(here=True)
    with pipe.iter_batches(share="still", max_lag=2, epochs=2, workers=WORKERS) as batches:
        pid = ray.get(still.begin.remote(pipe, "still", 2))
        os.kill(pid, signal.SIGSTOP)
        found = epochs_and_elements(batches, 2 * BATCHES - 4)
        os.kill(pid, signal.SIGCONT)
        rest = still.go_on.remote()
        shared = batches.report().shared
        found += epochs_and_elements(batches)
        assert sorted(found) == sorted((epoch, i) for epoch in range(2) for i in range(BATCHES * EACH))
        behind = ray.get(rest)
    assert sorted(i for _, i in behind) == wholly(2) and len(set(behind)) == len(behind), "each once in its epochs"
    assert "the shared group still waits for shared@" in caplog.text
    assert "the shared group still goes on without shared@" in caplog.text
    assert shared is not None and shared.held_back_s and shared.held_back_s[0][1] >= 6.0
    ray.kill(still)


def test_readers_of_a_group_that_is_stopped_are_told(tmp_path: Path) -> None:
    with pipe_of(tmp_path).iter_batches(share="stopped", epochs=None, workers=WORKERS) as batches:
        next(batches)
        assert main(["stop", "--force"]) == 0
        with pytest.raises(pecan.errors.PecanError, match="was ended: `pecan stop`"):
            list(batches)
