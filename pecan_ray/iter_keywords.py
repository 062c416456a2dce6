"""The keywords of `PecanPipeline.iter_batches`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from pecan_ray.errors import PlanError
from pecan_ray.options import AutoWorkers, OnError, Order, Sharding, Visitation, Workers


class RunLengthKeywords(TypedDict, total=False):
    """Where a run begins, and how far it goes."""

    epochs: int | None
    first_epoch: int | None
    epoch_batches: int | None
    steps: int | None
    state: Mapping[str, Any] | None
    allow_changed_source: bool


class IterKeywords(RunLengthKeywords, total=False):
    """What `iter_batches` takes beside `format`, for type checkers."""

    workers: Workers | AutoWorkers | int | None
    device: Any
    rank: int | None
    world_size: int | None
    share: bool | str
    max_lag: int | None
    order: Order | None
    visitation: Visitation | None
    sharding: Sharding | Any
    on_error: OnError
    prefetch_bytes: int
    job: str | None
    debug: bool
    coordinated: bool
    headspace: bool | int


def workers_of(given: Workers | AutoWorkers | int | None, *, fixed: bool) -> Workers | AutoWorkers:
    """Return the workers that an argument stands for: a number is of local ones, and None finds them unless `fixed`."""
    if isinstance(given, bool) or given == 0:
        raise PlanError(
            f"workers={given!r}: pass a whole number >= 1, Workers(...) or AutoWorkers(...); debug=True runs "
            "everything in this process, without workers."
        )
    if isinstance(given, int):
        return Workers(local=given)
    if given is None:
        return Workers() if fixed else AutoWorkers()
    return given


def device_name(given: Any) -> str | None:
    """Return the name of a device, which may be given as torch's."""
    return None if given is None else str(given)
