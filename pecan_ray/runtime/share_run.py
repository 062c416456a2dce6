"""The run of a group: one thread that takes batches from an ordinary job, one for each that is asked for."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from pecan_ray.errors import PecanError, describe_error
from pecan_ray.job.share_group import BeginRun, MoveToDisk, Produce
from pecan_ray.runtime.share_messages import RunMaker, SharedRun
from pecan_ray.runtime.share_readers import SharedBatch
from pecan_ray.transport.shared_slots import BatchHandle, SlotOwner

logger = logging.getLogger("pecan_ray.share")


class ShareRun:
    """Does what the group's state says; what comes of it is told by calls from its thread."""

    def __init__(
        self,
        make: RunMaker,
        lender: SlotOwner,
        *,
        came: Callable[[BatchHandle], None],
        over: Callable[[], None],
        failed: Callable[[PecanError], None],
        forget: Callable[[tuple[str, ...]], None],
        moved: Callable[[SharedBatch, BatchHandle | OSError], None],
    ) -> None:
        """`moved`: a batch lies on disk now, or could not be brought there."""
        self._make, self._slot_owner, self._moved = make, lender, moved
        self._received, self._over, self._failed, self._forget = came, over, failed, forget
        self._todo: queue.SimpleQueue[BeginRun | Produce | MoveToDisk[SharedBatch] | None] = queue.SimpleQueue()
        self.batches: SharedRun | None = None
        """Those of the run that is under way, or that was last."""
        self._scaled: tuple[int, int] | None = None
        """Local and remote workers, once somebody has changed them."""
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="pecan-share-run", daemon=True)
        self._thread.start()

    def do(self, instruction: BeginRun | Produce | MoveToDisk[SharedBatch]) -> None:
        """Have something done by the thread, behind what it was told before: the disk holds up what fills it."""
        self._todo.put(instruction)

    def scale(self, local: int, remote: int) -> None:
        """Change the numbers of workers, of this run and of those to come."""
        # Kept, because a group begins one run after the other.
        self._scaled = local, remote
        if self.batches is not None:
            self.batches.scale(local=local, remote=remote)

    def close(self) -> None:
        """End the run, and wait for it."""
        self._closing = True
        self._todo.put(None)
        if (batches := self.batches) is not None:
            batches.close()  # which lets the thread go
        self._thread.join()
        # The thread may have begun another run meanwhile.
        if self.batches is not None:
            self.batches.close()
        self._slot_owner.close()

    def _work(self) -> None:
        while (instruction := self._todo.get()) is not None and not self._closing:
            try:
                if isinstance(instruction, MoveToDisk):
                    self._move(instruction.entry)
                    continue
                if isinstance(instruction, BeginRun):
                    self._begin(instruction)
                self._take_one()
            except BaseException as error:  # whatever it is, the readers must know
                if not self._closing:
                    self._failed(error if isinstance(error, PecanError) else PecanError(describe_error(error)))
                return

    def _move(self, shared: SharedBatch) -> None:
        try:
            moved: BatchHandle | OSError = self._slot_owner.to_disk(shared.batch_handle)
        except OSError as error:
            moved = error
        self._moved(shared, moved)

    def _begin(self, run: BeginRun) -> None:
        state = None
        if self.batches is not None:
            # A run that goes on begins with the state of the one before, so nothing is lost or
            # repeated between them.
            state = self.batches.state_dict() if run.restart_from is None else None
            self.batches.close()
        self.batches = self._make(run.epochs, run.restart_from, state)
        if self._scaled is not None:
            local, remote = self._scaled
            self.batches.scale(local=local, remote=remote)
        if self._closing:  # which has closed the ones before
            self.batches.close()

    def _take_one(self) -> None:
        assert self.batches is not None
        try:
            received = self.batches.next_received()
        except StopIteration:
            self._over()
            return
        if ended := self._slot_owner.forget_ended():
            self._forget(ended)
        self._received(
            self._slot_owner.make_batch_handle(received.message, received.columns, received.provenance.worker)
        )
