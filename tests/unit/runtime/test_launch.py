"""Which rank a process is, as its launcher or its framework says, and where ranks on one machine find one Ray."""

from __future__ import annotations

import json
import logging
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from pecan_ray.errors import PlanError
from pecan_ray.integrations.train_context import placed
from pecan_ray.options import Workers
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.runtime import launch, local_rendezvous
from pecan_ray.sources import Arrays

Place = tuple[int, int, str | None]


@pytest.fixture(autouse=True)
def outside_of_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    of_launchers = {name for both in launch.TASKS_OF_LAUNCHERS.values() for name in both}
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT", "TF_CONFIG", *of_launchers):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(launch, "_warned", set())


@pytest.fixture
def rank_1_of_2(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "29517"}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def rank_2_of_3_in_torch() -> Iterator[None]:
    distributed: Any = pytest.importorskip("torch.distributed")
    fake: Any = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    distributed.init_process_group("fake", rank=2, world_size=3, store=fake.FakeStore())
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("rank_1_of_2")
def test_ranks_are_those_of_the_launcher_unless_they_are_given_and_each_of_their_jobs_has_a_name() -> None:
    for name in ("found-29517-1", "found-29517-2"):
        assert placed("found", None, None, None) == (1, 2, name)
    assert placed("found", None, None, "mine") == (1, 2, "mine")
    for rank, world_size in ((0, 1), (None, 1), (0, 2)):
        assert placed("validation", rank, world_size, None) == (0, world_size, None)


@pytest.mark.usefixtures("rank_2_of_3_in_torch")
def test_a_process_group_of_torch_knows_better_than_the_environment_and_needs_no_port(
    request: pytest.FixtureRequest,
) -> None:
    assert placed("by-file", None, None, None) == (2, 3, None), "its ranks share jobs by the pipeline's name"
    request.getfixturevalue("rank_1_of_2")
    assert placed("group", None, None, None) == (2, 3, "group-29517-1")


WORKERS = {"worker": ["a:2222", "b:2222"]}
CHIEF = {"chief": ["c:5000"], **WORKERS}


def tf_config(cluster: Any, task: str, index: Any) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": task, "index": index}})}


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({"RANK": "1"}, None),
        ({"WORLD_SIZE": "2"}, None),
        ({"RANK": "", "WORLD_SIZE": ""}, None),
        ({"RANK": "first", "WORLD_SIZE": "2"}, None),
        (tf_config(WORKERS, "worker", 1), (1, 2, "2222")),
        (tf_config({**CHIEF, "evaluator": ["e:1"]}, "worker", "0"), (1, 3, "5000")),
        (tf_config(CHIEF, "chief", 0), (0, 3, "5000")),
        (tf_config(WORKERS, "evaluator", 0), None),
        (tf_config({**CHIEF, "ps": ["p:1"]}, "worker", 0), None),
        (tf_config({"worker": ["a:2222"]}, "worker", 0), None),
        (tf_config(WORKERS, "worker", 2), None),
        (tf_config([], "worker", 0), None),
        ({"TF_CONFIG": "{"}, None),
    ],
)
def test_a_whole_place_in_the_environment_is_the_rank_and_half_of_one_is_none(
    variables: dict[str, str], place: Place | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = (0, 1, None) if place is None else (*place[:2], f"{variables}-{place[2]}-1")
    assert placed(str(variables), None, None, None) == found


@pytest.mark.usefixtures("rank_1_of_2")
def test_the_environment_of_a_ray_worker_is_its_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    worker: Any = ray._private.worker
    monkeypatch.setattr(worker.global_worker, "mode", worker.WORKER_MODE, raising=False)
    assert placed("in-an-actor", None, None, None) == (0, 1, None)


def test_one_of_several_tasks_that_need_not_train_together_is_told_once_what_to_write(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    launcher, (rank, world_size) = next(iter(launch.TASKS_OF_LAUNCHERS.items()))
    monkeypatch.setenv(rank, "3")
    monkeypatch.setenv(world_size, "4")
    with caplog.at_level(logging.WARNING, "pecan_ray"):
        assert placed("told", 0, 1, None) == (0, 1, None)
        assert not caplog.messages, "who says what to read is not told"
        assert placed("told", None, None, None) == placed("told", None, None, None) == (0, 1, None)
    (said,) = caplog.messages
    assert f"told: this is process 3 of the 4 of {launcher}, and reads everything" in said
    assert f'rank=int(os.environ["{rank}"])' in said and "pass rank=0, world_size=1" in said


def pipe() -> PecanPipeline:
    return PecanPipeline(Arrays(i=np.arange(10)), name="launched").batch(4)


@pytest.mark.usefixtures("rank_1_of_2")
def test_other_ways_to_iterate_find_the_rank() -> None:
    batches = pipe().iter_batches(debug=True)
    assert (batches._options.rank, batches._options.world_size) == (1, 2)
    batches = pipe().iter_batches(debug=True, share=True)
    assert (batches._options.rank, batches._options.world_size) == (0, 1), "each reader reads everything"
    pytest.importorskip("torch")
    with pytest.raises(PlanError, match=r"to_torch: 2 ranks share the job.*pass epochs"):
        pipe().to_torch()
    alone = pipe().to_torch(rank=0, world_size=1, workers=Workers(local=1))
    assert len(alone) == 3


# --- one Ray for the ranks of a machine -----------------------------------------------------------------------------


def _rank(folder: Path, all_met: Any, results: Any) -> None:
    """Meet others, use what was found behind them, and end as a process does."""
    place = folder / "ray"
    own = f"of-{multiprocessing.current_process().pid}"

    def start() -> str:
        place.write_text(own)
        return own

    started = local_rendezvous.connect_or_start(
        start, lambda address: place.exists() and address == place.read_text(), folder=folder
    )
    found = place.read_text()
    results.put((started, found))
    all_met.wait()
    if not started:
        all_met.wait()
        return
    (door,) = folder.glob("pecan-ranks-*[0-9]")
    with local_rendezvous._opened(door.with_suffix(".present")) as lives:
        assert not local_rendezvous._free(lives), "others use it"
    all_met.wait()
    local_rendezvous._see_off(door, door.with_suffix(".present"))
    place.unlink()


def test_ranks_of_a_machine_use_one_ray_which_ends_behind_all_of_them(tmp_path: Path) -> None:
    processes = multiprocessing.get_context("fork")
    all_met, results = processes.Barrier(4), processes.Queue()
    ranks = [processes.Process(target=_rank, args=(tmp_path, all_met, results)) for _ in range(4)]
    for one in ranks:
        one.start()
    met = [results.get(timeout=60) for _ in ranks]
    assert [started for started, _ in met].count(True) == 1, json.dumps(met)
    assert len({address for _, address in met}) == 1
    for one in ranks:
        one.join(60)
    assert [one.exitcode for one in ranks] == [0] * 4
    assert not list(tmp_path.iterdir()), "no file is left"


def test_a_ray_that_is_gone_is_not_waited_for(tmp_path: Path) -> None:
    def refuse(address: str) -> bool:
        assert address == "gone"
        return False

    assert local_rendezvous.connect_or_start(lambda: "gone", refuse, folder=tmp_path)
    assert local_rendezvous.connect_or_start(lambda: "another", refuse, folder=tmp_path), (
        "the file of a rank that was killed is left"
    )
