"""A run of a job on Ray, which this process begins or is a rank of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pecan_ray.autoorder.accepted import Ordered
from pecan_ray.cache_options import ClusterIo
from pecan_ray.errors import PlanError
from pecan_ray.job.resume_point import ResumePoint
from pecan_ray.job.row_order import row_order
from pecan_ray.job.trainer_events import EndOfEpoch
from pecan_ray.observe.placement import explain_with_next_step
from pecan_ray.observe.report import Report
from pecan_ray.observe.report_staff import slow_elements_line
from pecan_ray.observe.run_clock import RunClock
from pecan_ray.options import IterOptions, Workers
from pecan_ray.plan.shape import PlanShape
from pecan_ray.plan.stage_seconds import StageSeconds
from pecan_ray.run import Deliver, LoopSoFar, TrainingRun
from pecan_ray.runtime.client import has_left, leave_epoch
from pecan_ray.runtime.cluster import check_same_process
from pecan_ray.runtime.session import Session


class JobRun(TrainingRun):
    """Batches of a job, as its ledger deals them to this trainer."""

    def __init__(
        self,
        session: Session,
        clock: RunClock,
        options: IterOptions,
        remote_io: float | ClusterIo | None,
        shape: Callable[[], PlanShape],
    ) -> None:
        """`remote_io`: as the settings say; `shape`: tells how its workers run the plan."""
        self.session, self._clock, self._options = session, clock, options
        self._remote_io, self._shape = remote_io, shape
        self.ends_by_itself = options.world_size == 1
        clock.enter("controller", at=session.attach_time_s)

    @property
    def closed(self) -> bool:
        """Return whether the job was left, or is being left."""
        return self.session.closed

    def find_order(self, order: Callable[[], Ordered]) -> Ordered:
        """Return what the first rank has found for all of them, while the workers start."""
        self._clock.enter("order")
        ordered = Ordered() if self._options.rank else order()
        self._clock.enter("controller")
        return ordered

    def begin(self, ordered: Ordered, note_fallback: Callable[[str], None]) -> None:
        """Let the workers begin."""
        times, text = (ordered.row_seconds, ordered.op_seconds), ordered.order_text()
        self.session.begin(ordered.plan, ordered.order, *times, decoders=ordered.decoders, order_text=text)

    def take(self, within: int | None, deliver: Deliver) -> Any:
        """Return the next batch, or the end of an epoch."""
        client = self.session.client
        received = client.next(within)
        if received is None:
            raise StopIteration
        batch = received if isinstance(received, EndOfEpoch) else deliver(received, client)
        client.note_taken()
        return batch

    def leave_epoch(self, epoch: int) -> None:
        """Make nothing more of an epoch for this rank."""
        # The job goes on, with its processes, threads and caches: another one would take seconds
        # (docs/decisions/randomness-and-passes.md#106-a-new-iterator-is-a-new-pass).
        leave_epoch(self.session.client, epoch)

    def may_leave(self) -> None:
        """Let the other ranks go on."""
        self.session.may_leave()

    def answers(self) -> bool:
        """Tell whether the controller does."""
        check_same_process()
        return self.session.has_controller_response()

    def resume_point(self, ahead: int) -> tuple[ResumePoint, int]:
        """Return where the job stands, over all ranks."""
        return self.session.resume_point(ahead)

    def scale(self, workers: Workers) -> None:
        """Change the numbers of workers; those that go are drained."""
        check_same_process()
        self.session.scale(workers)

    def set_remote_io(self, bytes_per_s: float | None) -> None:
        """Bound what the job's workers read together."""
        if isinstance(self._remote_io, ClusterIo):
            raise PlanError(
                "set_remote_io: this job has its part of what the cluster's jobs share, which changes "
                "by itself: give it a number of its own in place of Config(remote_io=ClusterIo(...))."
            )
        check_same_process()
        self.session.set_remote_io(bytes_per_s)

    def report(self, loop: LoopSoFar) -> Report:
        """Return what the controller and this trainer have seen."""
        check_same_process()
        client, facts = self.session.client, self.session.stats()
        report = Report.of_job(facts, client.progress(), client.state.first_batch_s, over=self.session.closed)
        begun = loop.epochs_begun + has_left(client, loop.epoch)
        finished = facts.epochs if loop.over else min(facts.epochs, begun)
        report = replace(report, in_line_s=client.state.steps.in_line_s)
        return replace(report, epochs=finished).with_time(loop.spent, op_seconds=facts.op_seconds)

    def explain(self) -> str:
        """Return what AutoPlacement has compared, and in which order rows come."""
        check_same_process()
        facts = self.session.stats()
        running = facts.deployments[-1][1].workers if facts.deployments else None
        order = row_order(self._options, self._shape(), running, facts.order_given_up)
        stages = sum((one.stages for one in facts.workers.values()), StageSeconds())
        slow = slow_elements_line(stages.slow, self.session.client.state.steps.in_line_s, facts.seconds)
        lines = (explain_with_next_step(facts), f"order: {order.why}", self.session.explain_decoding(facts), slow)
        return "\n  ".join(filter(None, lines))

    def close(self, *, well: bool) -> str:
        """Leave the job; the last rank ends it."""
        self.session.close(keep=well)
        return self.session.stats().fallback_reason
