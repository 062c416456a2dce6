"""What a pipeline's job asks for when it shares: with whom it may, and what the group is to run."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pecan_ray.by_value import dumps
from pecan_ray.errors import PlanError
from pecan_ray.job.share_trials import TrialRank
from pecan_ray.options import Config, EngineName, IterOptions, PipelineSettings, Visitation
from pecan_ray.plan.fingerprint import describe_plan
from pecan_ray.plan.operators import Plan
from pecan_ray.runtime.pickling import pickle_plan
from pecan_ray.runtime.share_entry import ShareRequest
from pecan_ray.runtime.share_messages import GroupPlan, RunMaker, SharedPart, WindowOnDisk

logger = logging.getLogger("pecan_ray")

OWN = (
    "epochs",
    "first_epoch",
    "workers",
    "format",
    "device",
    "rank",
    "world_size",
    "prefetch_bytes",
    "job",
    "share",
    "max_lag",
    "visitation",
)
"""Options in which the run of a group is not what one of its readers says."""
_said: set[str] = set()
"""Pipelines of which it was said that they cannot be shared."""


def share_request(
    plan: Plan,
    settings: PipelineSettings,
    options: IterOptions,
    begin: Callable[..., Any],
) -> ShareRequest | None:
    """Return which group a job wants to read, and what that runs if it does not run yet; None: it cannot share.

    `begin`: `iter_batches` of a pipeline that can be pickled.
    """
    name, config = settings.name, settings.config
    if options.on_error == "quarantine" and not os.path.isabs(config.quarantine_path or ""):
        raise PlanError(
            f"{name}: with share={options.share!r} the group writes the quarantine file, on its own node: name the "
            'file by a whole path, Config(quarantine_path="/...").'
        )
    try:
        parts = group_parts(plan, settings.engine, settings.seed, options)
    except PlanError as error:
        if name not in _said:
            _said.add(name)
            logger.warning("%s is not shared, and runs a job of its own: %s", name, error.message)
        return None
    pickle_plan(plan, {})  # says what cannot be sent, if anything cannot
    given = {key: value for key, value in vars(options).items() if key not in OWN}
    make = dumps(run_maker(begin, options, given))
    lag = options.max_lag
    limits = config.share_window_bytes, config.share_linger_s, config.trainer_timeout_s, lag, window_on_disk(config)
    patience_s = config.share_patience_s
    group = options.share if isinstance(options.share, str) else f"same-{_digest(repr(parts))}"
    of = None if options.world_size == 1 else TrialRank(options.job or "", options.rank, options.world_size)
    return ShareRequest(group, GroupPlan(make, name, parts, *limits, patience_s), options.epochs, config, of)


def window_on_disk(config: Config) -> WindowOnDisk:
    """Return what a group may keep on disk, and where."""
    if not config.share_disk_bytes:
        # The default: all readers would pay for the copies of one that is late
        # (docs/decisions/sharing.md#44-groups-of-sharing-readers).
        return WindowOnDisk()
    return WindowOnDisk(config.share_disk_bytes, Path(tempfile.gettempdir()))


def usual_visitation(share: bool | str, max_lag: int | None) -> Visitation:
    """Return what is meant where nothing is said: a reader that others do not wait for may skip."""
    return "at_most_once" if share and max_lag is None else "exactly_once"


def own_options(options: IterOptions, visitation: Visitation | None) -> IterOptions:
    """Return the options of a job that shares nothing, though it was asked to; `visitation`: as the user has said."""
    if not options.share:
        return options
    return replace(options, share=False, max_lag=None, visitation=visitation or "exactly_once")


def run_maker(begin: Callable[..., Any], options: IterOptions, given: dict[str, Any]) -> RunMaker:
    """Return what begins a run of a group, as its first reader wants it."""
    workers, prefetch_bytes = options.workers, options.prefetch_bytes

    def make(epochs: int | None, first_epoch: int | None, state: Any) -> Any:
        part = {"epochs": epochs, "first_epoch": first_epoch, "state": state, "rank": 0, "world_size": 1}
        return begin(**part, workers=workers, prefetch_bytes=prefetch_bytes, **given)

    return make


def group_parts(plan: Plan, engine: EngineName, seed: int, options: IterOptions) -> tuple[SharedPart, ...]:
    """Return all in which readers of a group agree, part by part; raises PlanError where that cannot be told.

    That is so where a function holds something without a stable text: two different ones would look alike.
    """
    chosen = [(f"iter_batches({name}=...)", repr(getattr(options, name))) for name in ("order", "on_error", "max_lag")]
    data = [(f"data of source {n}", _digest(source.identity())) for n, source in enumerate(plan.sources(), 1)]
    return (("engine", engine), ("seed", str(seed)), *chosen, *describe_plan(plan, strict=True), *data)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=6).hexdigest()
