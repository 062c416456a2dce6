"""The run of a group: one thread that takes batches from an ordinary job, one for each that is asked for."""

from __future__ import annotations

import logging
import pickle
import queue
import threading
import time
from collections.abc import Callable

import ray

from pecan_ray.errors import PecanError, describe_error
from pecan_ray.job.share_group import BeginRun, MoveToDisk, Produce
from pecan_ray.runtime.share_messages import RunMaker, SharedRun
from pecan_ray.runtime.share_readers import SharedBatch
from pecan_ray.transport.shared_slots import BatchHandle, SlotOwner

logger = logging.getLogger("pecan_ray.share")

STATE_S = 1.0
"""Between two states of a run: a state takes about a millisecond, and readers keep which data has come since."""
STATE_SHARE = 50
"""A state that takes longer is followed by a pause so many times as long, so that states take 2 % of the time."""


class ShareRun:
    """Does what the group's state says; what comes of it is told by calls from its thread."""

    def __init__(
        self,
        make: RunMaker,
        lender: SlotOwner,
        *,
        came: Callable[[BatchHandle, bytes | None, int], None],
        over: Callable[[], None],
        failed: Callable[[PecanError], None],
        forget: Callable[[tuple[str, ...]], None],
        moved: Callable[[SharedBatch, BatchHandle | OSError], None],
    ) -> None:
        """`came`: a batch, the run's newest state (pickled; None: there is none), and how many batches have come since.

        `moved`: a batch lies on disk now, or could not be brought there.
        """
        self._make, self._slot_owner, self._moved = make, lender, moved
        self._received, self._over, self._failed, self._forget = came, over, failed, forget
        self._todo: queue.SimpleQueue[BeginRun | Produce | MoveToDisk[SharedBatch] | None] = queue.SimpleQueue()
        self.batches: SharedRun | None = None
        """Those of the run that is under way, or that was last."""
        self._scaled: tuple[int, int] | None = None
        """Local and remote workers, once somebody has changed them."""
        self._states = _RunStates()
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
        handle = self._slot_owner.make_batch_handle(received.message, received.columns, received.provenance.worker)
        self._received(handle, *self._states.behind(self.batches, received.provenance.epoch))


class _RunStates:
    """States of the run, which readers keep: with them they go on where the group's process is lost."""

    def __init__(self) -> None:
        self._epoch = -1
        self._state: bytes | None = None
        self._batches_since = 0
        self._next_at = 0.0
        self._fails = False

    def behind(self, run: SharedRun, epoch: int) -> tuple[bytes | None, int]:
        """Return the newest state of an epoch, pickled, and how many batches have come since; a batch has just come."""
        self._batches_since += 1
        if epoch != self._epoch or time.monotonic() >= self._next_at:
            self._epoch = epoch
            started = time.monotonic()
            self._state, self._batches_since = self._taken(run), 0
            took = time.monotonic() - started
            self._next_at = started + took + max(STATE_S, STATE_SHARE * took)
        return self._state, self._batches_since

    def _taken(self, run: SharedRun) -> bytes | None:
        try:
            return pickle.dumps(run.state_dict())
        except (PecanError, ray.exceptions.RayError) as error:
            if not self._fails:
                logger.warning("readers of this group could not go on without it: its run has no state: %s", error)
            self._fails = True
            return None
