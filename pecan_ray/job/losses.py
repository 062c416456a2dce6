"""When the loss of workers means that the job cannot run, and not that a machine failed.

Decisions: docs/decisions/faults-and-silence.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from pecan_ray.job.events import DIED, LossCause, WorkerLost
from pecan_ray.job.ledger_shape import LedgerShape

# Decision 45: the sixth loss in a row without a batch ends the job.
MOST_IN_A_ROW = 5
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
    """When it was asked for, and"""
    time: float
    """when it was lost."""


class Losses:
    """The workers that died since a trainer received a batch, by cause and time."""

    def __init__(self) -> None:
        self.count = 0
        self.exit_reason = ""
        """Of the process that ended last, as far as it is known why, and its name."""
        self.cut_refused = False
        """One has met an element before which its plan cannot be cut: workers leave nothing to the trainer any more."""
        self._in_a_row: list[Loss] = []

    def delivered(self) -> None:
        """Note that a trainer has received a batch, or why one cannot be made was found: workers can do their work."""
        self._in_a_row.clear()

    def note_exit(self, lost: WorkerLost) -> str:
        """Note why a worker's process ended, where that is known; return it, for one that was lost before."""
        # DIED is said where nothing is known, and must not hide what another process has said at its end.
        if lost.cause != "process" or lost.why == DIED:
            return ""
        self.exit_reason = f"{lost.worker}: {lost.why}"
        return f"{lost.worker} was lost since {lost.why}"

    def is_work_at_fault(self, loss: Loss, shape: LedgerShape) -> bool:
        """Tell whether what a worker did may be why it is lost.

        Where each worker reads all data, those of a lost node have no more to do with it than one of them.
        """
        if loss.cause not in ("process", "stream", "hung"):
            return False
        return shape.sharding != "off" or not self._known(loss)

    def _known(self, loss: Loss) -> bool:
        return any(_together(loss, other) for other in self._in_a_row)

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
        return self._in_a_row_with(loss)

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
