"""A group in its process: lets its state know what happens, and performs what that says, on one event loop."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import pickle
import time
from collections.abc import Callable
from typing import Any

import ray

from pecan_ray.errors import PecanError, PlanError, describe_error
from pecan_ray.job.share_group import (
    EndGroup,
    Finish,
    GroupInstruction,
    LeaveBehind,
    SendEntry,
    ShareGroup,
    TellWaiting,
)
from pecan_ray.job.slow_readers import MAX_NAMED
from pecan_ray.runtime.cluster import process_exists, this_node
from pecan_ray.runtime.pickling import unpickle_here
from pecan_ray.runtime.share_messages import EndFrame, GroupPlan, GroupStats, Joined, JoinRequest, SharedPart
from pecan_ray.runtime.share_readers import GroupReader, PipeReader, SharedBatch, StoreReader, lost_readers
from pecan_ray.runtime.share_run import ShareRun
from pecan_ray.transport.shared_slots import BatchHandle, SlotOwner

logger = logging.getLogger("pecan_ray.share")

# Seconds between looks at readers. Their timeouts are 5 s at least (`Config(trainer_timeout_s=...)`).
TICK_S = 0.5
LAST_WORDS_S = 5.0
"""Readers may take so long to hear how it ended: those on other nodes speak once a second."""


# Why one process for all readers: docs/decisions/sharing.md#44-groups-of-sharing-readers
class ShareHost:
    """One group: its state, its readers and its run."""

    def __init__(self, name: str, plan: GroupPlan, end: Callable[[], None]) -> None:
        """`end`: called once, when all is over."""
        self.name, self.plan = name, plan
        self._end = end
        disk = plan.disk
        self.state: ShareGroup[SharedBatch] = ShareGroup(
            plan.window_bytes,
            plan.linger_s,
            max_lag=plan.max_lag,
            disk_bytes=disk.nbytes,
            first_epoch=plan.first_epoch,
            patience_s=plan.patience_s,
        )
        self._loop = asyncio.get_running_loop()
        self._readers: dict[str, GroupReader] = {}
        """Also those that read no more and hold batches."""
        self._processes: dict[str, tuple[str, str]] = {}
        """Ray's ids of each reader's process and node."""
        self._failed: PecanError | None = None
        self._disk_failed = False
        self.run = ShareRun(
            unpickle_here(plan.make, f"the pipeline of the shared group {name}"),
            # What the window and the readers hold is not bounded by the lender.
            SlotOwner(plan.window_bytes, disk.nbytes, disk.folder),
            came=lambda batch_handle, *state: self._elsewhere(self._on_batch, batch_handle, *state),
            over=lambda: self._elsewhere(lambda: self._perform(self.state.ran_out())),
            failed=lambda error: self._elsewhere(self._fail, error),
            forget=lambda tokens: self._elsewhere(self._forget, tokens),
            moved=lambda shared, batch_handle: self._elsewhere(self._moved_to_disk, shared, batch_handle),
        )
        self._tick_task = self._loop.create_task(self._tick())

    @property
    def over(self) -> bool:
        """Return whether nobody can join any more."""
        return self.state.ended or self._failed is not None

    # --- readers -------------------------------------------------------------------------------------------

    def join(self, request: JoinRequest) -> Joined:
        """Let a reader in; raises PlanError if it has another pipeline."""
        if differs := difference(self.plan.parts, request.parts):
            raise PlanError(
                f"the shared group {self.name} cannot be joined, since {differs}. Readers of a group have one pipeline "
                'with one data set: correct that, or give this one another name, iter_batches(share="...").'
            )
        name = request.reader
        # Decision 94: a reader that says nothing may only be stopped, and goes on later.
        self._processes[name] = request.process, request.node
        since = self.state.join(name, request.epochs, behind=request.behind, of=request.of)
        joined = Joined(None, since)
        if request.by_pipe:
            reader = PipeReader(
                lambda count: self._perform(self.state.request(name, count)),
                lambda: self.leave(name),
                lambda: self._forgotten(name),
            )
            self._readers[name], joined = reader, Joined(reader.channel.address, since)
        else:
            self._readers[name] = StoreReader(
                lambda count: self._perform(self.state.request(name, count)), self.plan.reader_timeout_s
            )
        return joined

    def store_reader(self, name: str) -> StoreReader:
        """Return a reader that asks by calls; raises PecanError for one that was given up."""
        reader = self._readers.get(name)
        if not isinstance(reader, StoreReader):
            raise PecanError(
                f"the shared group {self.name} has not heard of {name} for {self.plan.reader_timeout_s:.0f} s and has "
                "given it up: start the run again, with a longer Config(trainer_timeout_s=...) if it was only slow."
            )
        return reader

    def leave(self, name: str) -> None:
        """A reader wants no more, or is gone."""
        # A reader by pipe is forgotten when it closes its pipes, because it may hold slots until then.
        if isinstance(reader := self._readers.get(name), StoreReader):
            reader.close()
            self._forgotten(name)
        self._perform(self.state.leave(name))

    def _forgotten(self, name: str) -> None:
        self._readers.pop(name, None)
        self._processes.pop(name, None)

    def stats(self, run: Any = None) -> GroupStats:
        """Tell how the group is doing; `run`: the report of its run."""
        window = self.state.window
        sizes = window.bytes, len(window)
        fingerprint = fingerprint_of(self.plan.parts)
        pipeline = self.plan.pipeline
        return GroupStats(
            *(self.name, pipeline, fingerprint, this_node(), self.state.place, self.state.readers, *sizes, run),
            self.state.slow.held_back_s,
        )

    # --- what happens --------------------------------------------------------------------------------------

    def _elsewhere(self, call: Callable[..., None], *arguments: Any) -> None:
        """Have the event loop call something, from another thread."""
        self._loop.call_soon_threadsafe(call, *arguments)

    def _on_batch(self, batch_handle: BatchHandle, state: bytes | None, batches_since: int) -> None:
        shared = SharedBatch(batch_handle, state, batches_since)
        try:
            self._perform(self.state.produced(shared, batch_handle.nbytes, batch_handle.batch.epoch))
        except PlanError:
            self._fail(
                PlanError(
                    f"a batch of {batch_handle.nbytes} bytes does not fit into the window of the shared group "
                    f"{self.name}, which holds {self.plan.window_bytes}: make smaller batches, or set "
                    "Config(share_window_bytes=...)."
                )
            )

    def _moved_to_disk(self, shared: SharedBatch, moved: BatchHandle | OSError) -> None:
        if isinstance(moved, BatchHandle):
            shared.set_handle(moved)
        elif not self._disk_failed:
            self._disk_failed = True
            logger.warning(
                "the shared group %s moves nothing to disk any more (%s: %s): readers that lag skip what %d bytes of "
                "memory do not hold, or with max_lag hold the others back",
                *(self.name, self.plan.disk.folder, moved, self.plan.window_bytes),
            )
            self.state.disk_failed()

    def _forget(self, tokens: tuple[str, ...]) -> None:
        for reader in self._readers.values():
            reader.forget(tokens)

    def _perform(self, instructions: list[GroupInstruction[SharedBatch]]) -> None:
        try:
            self._perform_all(instructions)
        except Exception as error:  # of ours: nobody would hear of it here, and the readers would wait for ever
            logger.exception("the shared group %s has failed", self.name)
            self._fail(PecanError(f"the shared group {self.name} has failed: {describe_error(error)}"))

    def _perform_all(self, instructions: list[GroupInstruction[SharedBatch]]) -> None:
        for one in instructions:
            if isinstance(one, SendEntry):
                self._readers[one.reader].send(one.entry, one.skipped)
            elif isinstance(one, Finish):
                self._readers[one.reader].finish(EndFrame(one.skipped))
            elif isinstance(one, LeaveBehind):
                self._leave_behind(one)
            elif isinstance(one, TellWaiting):
                self._tell_waiting(one)
            elif isinstance(one, EndGroup):
                logger.info("the shared group %s ends: nobody has read for %g s", self.name, self.plan.linger_s)
                self._finish()
            else:
                self.run.do(one)

    def _leave_behind(self, one: LeaveBehind) -> None:
        message = (
            f"the shared group {self.name} goes on without {one.reader}, which has read nothing for "
            f"{one.seconds:.0f} s, while others waited for it (max_lag={self.plan.max_lag})"
        )
        logger.warning("%s", message)
        for stats in self.state.readers:
            self._readers[stats.reader].notify(message)
        self._readers[one.reader].finish(EndFrame(one.skipped, left_behind=message))

    def _tell_waiting(self, one: TellWaiting) -> None:
        message = (
            f"the shared group {self.name} waits for {', '.join(one.slow[:MAX_NAMED])}, the slowest of "
            f"{len(self.state.readers)} readers (max_lag={self.plan.max_lag}), which has read nothing for "
            f"{one.seconds:.0f} s; Config(share_patience_s=...) says for how long"
        )
        logger.warning("%s", message)
        for name in one.readers:
            self._readers[name].notify(message)

    def _fail(self, error: PecanError) -> None:
        """End the group with an error that all readers raise."""
        if self.over:
            return
        self._failed = error
        logger.error("the shared group %s ends: %s", self.name, error)
        for reader in self._readers.values():
            reader.finish(EndFrame(0, error))
        self._loop.call_later(LAST_WORDS_S, self._finish)

    def stop(self, why: str) -> None:
        """End the group now; its readers raise an error that says why."""
        self._fail(PecanError(f"the shared group {self.name} was ended: {why}."))

    def _finish(self) -> None:
        self._tick_task.cancel()
        self._end()

    async def _tick(self) -> None:
        """Let time pass, and look for readers that are gone."""
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            for name in await lost_readers(self._readers, now, self._process_exists):
                if name not in self._readers:  # it has left meanwhile
                    continue
                logger.warning("the shared group %s gives up its reader %s, which is not heard", self.name, name)
                self._readers[name].close()
                self._forgotten(name)
                self._perform(self.state.leave(name))
            if self._failed is None:
                self._perform(self.state.time(now))
            # All readers have heard how it ended, so nobody is waited for.
            elif not self._readers:
                self._finish()

    def _process_exists(self, name: str) -> bool | None:
        process, node = self._processes.get(name, ("", ""))
        try:
            return process_exists(process, node)
        except ray.exceptions.RayError as error:
            logger.warning("the shared group %s cannot be told whether %s lives: %s", self.name, name, error)
            return None


def difference(mine: tuple[SharedPart, ...], other: tuple[SharedPart, ...]) -> str:
    """Say in what a reader differs from its group; nothing if in nothing."""
    if mine == other:
        return ""
    here, there = dict(mine), dict(other)
    for name in dict.fromkeys((*here, *there)):
        if here.get(name) != there.get(name):
            return f"it has {_describe_part(name, here)} where this one has {_describe_part(name, there)}"
    return "its operators are in another order"


def _describe_part(name: str, parts: dict[str, str]) -> str:
    return f"{name} {parts[name]}" if name in parts else f"no {name}"


def fingerprint_of(parts: tuple[SharedPart, ...]) -> str:
    """Return a hash of all in which readers agree."""
    return hashlib.blake2b(pickle.dumps(parts, 4), digest_size=8).hexdigest()
