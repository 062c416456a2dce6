"""The keywords of `PecanPipeline.iter_batches`, for type checkers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from pecan_ray.options import AutoWorkers, OnError, Order, Sharding, Visitation, Workers


class IterKeywords(TypedDict, total=False):
    """What `iter_batches` takes beside `format`, for type checkers."""

    epochs: int | None
    first_epoch: int | None
    workers: Workers | AutoWorkers | None
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
    state: Mapping[str, Any] | None
    allow_changed_source: bool
    coordinated: bool
    headspace: bool | int
