"""The worker that is started beside its controller is the one which that then asks for."""

from __future__ import annotations

from typing import Any

import pytest

from pecan_ray.job import events
from pecan_ray.job.first_worker import first_worker
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.start_worker import StartWorker
from pecan_ray.options import AutoWorkers, Workers
from tests.unit.job.job_rig import JobRig, of_kind

ALIKE: list[tuple[Workers | AutoWorkers, dict[str, Any]]] = [
    (Workers(1), {}),
    (Workers(3, 2), {}),
    (Workers(2), {"remote_io": 8e6}),
    (Workers(2, 3), {"remote_io": 8e6}),
    (Workers(1), {"cpus_per_worker": 8.0}),
    (AutoWorkers(), {}),
    (AutoWorkers(), {"cpus_per_worker": 2.0}),
    (AutoWorkers(mode="collocated"), {}),
    (AutoWorkers(min_local=1, max_local=2), {}),
]


@pytest.mark.parametrize(("workers", "options"), ALIKE)
@pytest.mark.parametrize("remote", [(), (4.0, 4.0)])
def test_it_is_what_the_controller_asks_for_first(
    workers: Workers | AutoWorkers, options: dict[str, Any], remote: tuple[float, ...]
) -> None:
    rig = JobRig(workers=workers, **options)
    rig.handle(events.TrainerCame(0, "t0", "node"))
    asked = of_kind(StartWorker, rig.handle(events.RoomFound((("node", 4.0),), remote)))
    assert first_worker(rig.spec, "node", 4.0) == asked[0]


@pytest.mark.parametrize(
    "workers",
    [Workers(0, 2), AutoWorkers(mode="cachew"), AutoWorkers(max_local=0), AutoWorkers(max_local_cpu_fraction=0)],
)
def test_it_is_not_guessed_where_none_is_local(workers: Workers | AutoWorkers) -> None:
    assert first_worker(JobRig(workers=workers).spec, "node", 4.0) is None


def test_it_is_not_guessed_for_several_trainers() -> None:
    assert first_worker(JobRig(LedgerShape(world_size=2), Workers(1)).spec, "node", 4.0) is None
