"""Whose turn it is: whether an idle worker may begin with an assignment."""

from __future__ import annotations

from collections.abc import Mapping

from pecan_ray.job.holdings import WorkerHoldings
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.queues import Queues
from pecan_ray.job.whole_plan import WholePlan


def elsewhere(worker: str, shape: LedgerShape, whole: WholePlan, workers: Mapping[str, WorkerHoldings]) -> bool:
    """Tell whether another worker has the only assignment that may be given at a time."""
    if shape.runs_whole:
        return not whole.may_run(worker)
    others = (state for name, state in workers.items() if name != worker)
    return shape.serial and any(state.working or state.holdings for state in others)


def has_work(worker: str, state: WorkerHoldings, epoch: int, queues: Queues) -> bool:
    """Tell whether there is something for a worker to do in an epoch."""
    if queues.each_sees_all:
        return state.finished_epoch < epoch
    return queues.has_work(worker)


def any_will_do(worker: str, shape: LedgerShape, workers: Mapping[str, WorkerHoldings]) -> bool:
    """Tell whether this worker, where it must wait, waits for the same as all others of which this is true."""
    state = workers.get(worker)
    mine = state is None or state.unsettled is not None or bool(state.group)
    return not (mine or shape.serial) and shape.sharding == "dynamic"
