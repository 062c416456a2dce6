"""What a remote worker leaves to the trainer: where its pipeline is cut, and when that is decided.

Decision: docs/decisions/transport.md#204-the-tail-of-a-pipeline-runs-where-batches-arrive
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from pecan_ray.engines.contract import Unfinished
from pecan_ray.engines.python.deferral import ChooseCut, Deferral, deferrable_ops
from pecan_ray.job.start_worker import StartWorker
from pecan_ray.known.image_run import ImageRun, image_run
from pecan_ray.options import AutoWorkers
from pecan_ray.placement.cut import LINK_BYTES_PER_S, LinkCosts, PipelineCut, TailOp, choose_cut
from pecan_ray.plan.operators import Plan
from pecan_ray.plan.prices import Prices
from pecan_ray.runtime.messages import Job


class PipelineSplit:
    """The cut of a worker's plan, which changes between two assignments alone."""

    def __init__(
        self,
        choose: ChooseCut | None = None,
        users_parts: Collection[tuple[str, str]] = (),
        *,
        accelerator: bool = False,
    ) -> None:
        """`choose`: None: no arithmetic is left to the trainer by itself; `accelerator`: images are.

        `users_parts`: what the user's plan consists of.
        """
        self._choose, self._users_parts, self._accelerator = choose, frozenset(users_parts), accelerator
        self._images: ImageRun | None = None
        self._plan: Plan | None = None
        self._deferral: Deferral | None = None

    @classmethod
    def of_worker(cls, started: StartWorker, job: Job, link_bytes_per_s: Callable[[], float | None]) -> PipelineSplit:
        """Return how a worker's plan is cut: those on the trainer's node never are, but for images."""
        wanted = job.config.split_pipeline
        # Of operators that hand their elements on nothing could be counted, by which this mode reorders them.
        counted = job.check_order_later and job.config.reorder == "pecan"
        if started.whole_plan or job.engine != "python" or counted:
            return cls()
        if started.accelerator:
            return cls(None, job.parts, accelerator=True)
        if started.placement != "remote" or wanted == "off":
            return cls()
        prices = job.options.workers.prices if isinstance(job.options.workers, AutoWorkers) else None
        return cls(partial(_choose, link_bytes_per_s, prices, wanted == "always"), job.parts)

    def begin(self, plan: Plan) -> Plan:
        """Take a version of the plan, and return it as the engine is to run it."""
        self._plan, self._deferral = plan, None
        self._images = image_run(plan, self._users_parts) if self._accelerator else None
        if self._images is not None:
            return self._images.guarded(plan)
        if self._choose is None or not (chains := deferrable_ops(plan, self._users_parts)):
            return plan
        self._deferral = Deferral(chains, self._choose)
        return self._deferral.guarded(plan)

    def other_plan(self) -> Plan | None:
        """Return the plan with another cut, where what is known by now asks for one; None: all stays."""
        if self._plan is None or self._deferral is None or not self._deferral.is_outdated():
            return None
        return self.begin(self._plan)

    def unfinished(self, columns: Mapping[str, Any]) -> Unfinished | None:
        """Return what the trainer has to do to a batch."""
        left = self._images or self._deferral
        return None if left is None else left.unfinished(columns)

    def refused(self, users_order: bool) -> str:
        """Return why nothing that was made may leave the worker; empty where it may.

        `users_order`: elements go through the user's order of operators, in place of that of the plan.
        """
        if users_order and (self._images or (self._deferral and self._deferral.active)):
            return "operators run in your order from now on, and none of them is left to the trainer"
        return "" if self._deferral is None else self._deferral.refused


def _choose(
    link_bytes_per_s: Callable[[], float | None], prices: Prices | None, always: bool, ops: Sequence[TailOp]
) -> PipelineCut:
    """Return where to cut, by what the link has shown and by prices."""
    link = LinkCosts(link_bytes_per_s() or LINK_BYTES_PER_S)
    if prices is not None:
        link = LinkCosts(link.bytes_per_s, prices.transfer_per_gb, prices.remote_worker, prices.accelerator_host)
    return choose_cut(ops, link, always=always)
