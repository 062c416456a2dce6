"""When the loss of workers means that the job cannot run, and not that a machine failed.

Only losses of which a worker's own work may be the cause end a job, when there are several in a row: its process ended,
it hung, or it said nothing although it had a CPU.  All others are told and waited out: they may end by themselves, and
workers are started at longer and longer intervals, because each start takes CPU time from whoever has too little.

Decisions: docs/decisions/faults-and-silence.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pecan_ray.job.events import DIED, LossCause, WorkerLost
from pecan_ray.job.ledger_shape import LedgerShape

# Decision 45: the sixth loss in a row without a batch ends the job.
MOST_IN_A_ROW = 5
FROM_WORK: tuple[LossCause, ...] = ("process", "silent", "hung")
"""What a worker's own work may be the cause of."""
MAX_PAUSE_S = 30.0
"""Longest time without starting a worker after losses of other causes: what has passed is noticed within it."""
TOGETHER_S = 10.0
"""Workers of one node that were there at a time and are lost within this one have one cause, whatever it is."""


@dataclass(frozen=True)
class Loss:
    """A worker that is gone."""

    worker: str
    node: str
    cause: LossCause
    why: str
    requested: float
    """When it was asked for."""
    time: float
    """When it was lost."""


class Losses:
    """The workers that died since a trainer received a batch, by cause and time."""

    def __init__(self) -> None:
        self.count = 0
        self.exit_reason = ""
        """Of the process that ended last, as far as it is known why, and its name."""
        self.cut_refused = False
        """One has met an element before which its plan cannot be cut: workers leave nothing to the trainer any more."""
        self._in_a_row: list[Loss] = []
        """Losses of which the work of the workers may be the cause."""
        self._others: list[Loss] = []
        """Losses of which it is not known, or of which it is not the cause."""
        self._start_from: float | None = None
        """No worker is started before this time; None: workers are started at once."""

    def delivered(self) -> None:
        """Note that a trainer has received a batch, or why one cannot be made was found: workers can do their work."""
        self._in_a_row.clear()
        self._others.clear()
        if self._start_from is not None:
            self._start_from = 0.0

    def note_exit(self, lost: WorkerLost) -> str:
        """Note why a worker's process ended, where that is known; return it, for one that was lost before."""
        # DIED is said where nothing is known, and must not hide what another process has said at its end.
        if lost.cause != "process" or lost.why == DIED:
            return ""
        self.exit_reason = f"{lost.worker}: {lost.why}"
        return f"{lost.worker} was lost since {lost.why}"

    def explain(self, lost: WorkerLost) -> str:
        """Count a loss as what it is whose cause is known only now; return why the job cannot go on, or nothing.

        A stream often breaks before the system tells that the process of its worker has ended, or its node is gone.
        """
        known = next((one for one in self._others if one.worker == lost.worker), None)
        if known is None or lost.cause == "stream":
            return ""
        self._others.remove(known)
        if lost.cause not in FROM_WORK:
            return ""
        return self._in_a_row_with(replace(known, cause=lost.cause, why=lost.why))

    # --- when workers are started again --------------------------------------------------------------------

    def may_start(self, now: float) -> bool:
        """Tell whether workers are started now."""
        return self._start_from is None or now >= self._start_from

    @property
    def starts_later(self) -> bool:
        """Return whether workers are to be started when a pause ends."""
        return self._start_from is not None

    def pause_ended(self, now: float) -> bool:
        """Tell, once, that workers which were not started are to be started now."""
        if self._start_from is None or now < self._start_from:
            return False
        self._start_from = None
        return True

    def _pause(self, now: float) -> None:
        # The first loss may be a single one, and the job needs a worker in its place. Workers that were not started in
        # a pause before it still have to be.
        if len(self._others) > 1:
            self._start_from = now + min(2.0 ** (len(self._others) - 2), MAX_PAUSE_S)

    def waiting(self) -> str:
        """Say which losses in a row are waited out, with `{seconds}` for since when; empty if there are none."""
        if len(self._others) < 2:
            return ""
        last = self._others[-1]
        return (
            f"{len(self._others)} workers in a row were lost within {{seconds}} before a trainer received a batch, and "
            f"nothing shows that their work is at fault; the last one, {last.worker}, since {last.why}. Look whether "
            "their nodes have CPUs to spare and can be reached, or raise Config(worker_timeout_s=...). Workers are "
            f"started at intervals of up to {MAX_PAUSE_S:.0f} s until a batch has come"
        )

    def waiting_since(self) -> float | None:
        """Return when the first of these losses was; None if there are none."""
        return self._others[0].time if self._others else None

    # --- what a loss means ---------------------------------------------------------------------------------

    def is_work_at_fault(self, loss: Loss, shape: LedgerShape) -> bool:
        """Tell whether what a worker did may be why it is lost.

        Where each worker reads all data, those of a lost node have no more to do with it than one of them.
        """
        # A broken stream is in nearly all cases the first sign that a process has ended.
        if loss.cause not in (*FROM_WORK, "stream"):
            return False
        return shape.sharding != "off" or not self._known(loss)

    def _known(self, loss: Loss) -> bool:
        return any(_together(loss, other) for other in (*self._in_a_row, *self._others))

    def note_sigterm(self, worker: str, node: str, requested: float, now: float) -> str:
        """Note that a worker's process was asked to end, which is no loss; return why the job cannot go on, if so."""
        asked = Loss(worker, node, "process", "its process was asked to end (SIGTERM)", requested, now)
        # Workers of one node are asked together, and count once.
        return "" if self._known(asked) else self._in_a_row_with(asked)

    def add(self, loss: Loss, *, expected: bool = False) -> str:
        """Note a loss; return why the job cannot go on, or nothing if it can.

        `expected`: it was to show which element kills.  A lost node is no fault of the pipeline's, and neither
        are the workers that it had, however many: that their streams broke is often known before it is.
        """
        if loss.cause in ("order", "restart"):
            return ""  # its own doing, and that of what kept it
        self.count += 1
        if expected or loss.cause == "node" or self._known(loss):
            return ""
        if loss.cause in FROM_WORK:
            return self._in_a_row_with(loss)
        # Decision 237: what is around a worker is waited out, however often, because a job cannot run elsewhere.
        self._others.append(loss)
        self._pause(loss.time)
        return ""

    def _in_a_row_with(self, loss: Loss) -> str:
        self._in_a_row.append(loss)
        if len(self._in_a_row) <= MOST_IN_A_ROW:
            return ""
        look = "Look at its log for a crash in native code, and at the memory of its node"
        if self.exit_reason and loss.why not in self.exit_reason:
            look = f"The last that is known, {self.exit_reason}. {look}"
        if loss.cause == "hung":
            look = "Config(hung_after_s=...) says how long one element may take"
        return (
            f"{len(self._in_a_row)} workers in a row were lost before a trainer received a batch; the last one, "
            f"{loss.worker}, since {loss.why}. {look}"
        )


def _together(loss: Loss, other: Loss) -> bool:
    """Tell whether workers were lost together; one that was requested in place of the other was not."""
    here = bool(loss.node) and loss.node == other.node
    return here and loss.requested < other.time and loss.time - other.time < TOGETHER_S
