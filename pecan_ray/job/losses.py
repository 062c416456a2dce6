"""When the loss of workers means that the job cannot run, and not that a machine failed."""

from __future__ import annotations

from dataclasses import dataclass

from pecan_ray.job.events import LossCause

MOST_IN_A_ROW = 5
TOGETHER_S = 10.0
"""Workers of one node that are lost within this time have one cause, whatever it is."""


@dataclass(frozen=True)
class Loss:
    """A worker that is gone."""

    worker: str
    node: str
    cause: LossCause
    why: str
    time: float


class Losses:
    """The workers that died since a trainer received a batch, by cause and time."""

    def __init__(self) -> None:
        self.count = 0
        self._in_a_row: list[Loss] = []

    def delivered(self) -> None:
        """Note that a trainer has received a batch: workers can do their work."""
        self._in_a_row.clear()

    def add(self, loss: Loss) -> str:
        """Note a loss; return why the job cannot go on, or nothing if it can.

        A lost node is no fault of the pipeline's, and neither are the workers that it had, however many: that their
        streams broke is often known before it is.
        """
        self.count += 1
        together = any(
            loss.node == other.node and loss.time - other.time < TOGETHER_S for other in self._in_a_row if loss.node
        )
        if loss.cause == "node" or together:
            return ""
        self._in_a_row.append(loss)
        if len(self._in_a_row) <= MOST_IN_A_ROW:
            return ""
        return (
            f"{len(self._in_a_row)} workers in a row were lost before a trainer received a batch; the last one, "
            f"{loss.worker}, since {loss.why}. Look at its log for a crash in native code, and at the memory of its "
            "node"
        )
