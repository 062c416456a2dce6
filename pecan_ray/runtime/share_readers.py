"""A group's side of its readers: over pipes on its node, by actor calls elsewhere."""

from __future__ import annotations

import asyncio
import logging
import pickle
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import ray

from pecan_ray.runtime.share_messages import BatchFrame, EndFrame, NoticeFrame, pickled_frame
from pecan_ray.transport.share_channel import ShareChannel
from pecan_ray.transport.shared_slots import BatchDescriptor, BatchHandle

logger = logging.getLogger("pecan_ray.share")

OPEN_S = 60.0
"""A reader that has not opened its pipes after so long is gone: it does so as soon as it has the answer."""


class SharedBatch:
    """A loan as readers are told of it: pickled once, and put into Ray's object store for the first who needs that."""

    def __init__(self, batch_handle: BatchHandle, state: bytes | None = None, batches_since: int = 0) -> None:
        """`state`: the run's newest one as of this batch, so many batches ago."""
        self._stored: tuple[Any, bytes] | None = None
        self.state, self._batches_since = state, batches_since
        self.set_handle(batch_handle)

    def frame(self, skipped: int, forget: tuple[str, ...], batch: bytes, known: bytes | None) -> bytes:
        """Return what goes to a reader; `known`: the state that came to it last."""
        news = None if self.state is known else self.state
        return pickled_frame(BatchFrame(skipped, forget, batch, news, self._batches_since))

    def set_handle(self, batch_handle: BatchHandle) -> None:
        """Those who come to it from now on find it there."""
        self.batch_handle = batch_handle
        self.batch = pickle.dumps(batch_handle.batch, pickle.HIGHEST_PROTOCOL)

    @property
    def stored(self) -> tuple[Any, bytes]:
        """The reference of its columns, and what is said of it."""
        if self._stored is None:
            batch: BatchDescriptor = replace(self.batch_handle.batch, address=None)
            self._stored = ray.put(self.batch_handle.columns), pickle.dumps(batch)
        return self._stored


class GroupReader(Protocol):
    """What brings batches to one reader."""

    def send(self, shared: SharedBatch, skipped: int) -> None:
        """Bring it a batch that it has wished for."""
        ...

    def notify(self, text: str) -> None:
        """Tell it what it should know while it waits."""
        ...

    def finish(self, end: EndFrame) -> None:
        """Tell it that there will be no more."""
        ...

    def forget(self, tokens: tuple[str, ...]) -> None:
        """Have it let go of memory files."""
        ...

    def is_lost(self, now: float) -> bool:
        """Tell whether it has not been heard for too long."""
        ...

    def extend_timeout(self, now: float) -> None:
        """Wait for it for as long again: its process exists."""
        ...

    def close(self) -> None:
        """Let go of it, and of what it holds."""
        ...


async def lost_readers(
    readers: Mapping[str, GroupReader], now: float, process_exists: Callable[[str], bool | None]
) -> list[str]:
    """Return the readers that are not heard and whose process has ended, as far as is known; wait for the others.

    Args:
        readers: By name.
        now: Seconds of `time.monotonic`.
        process_exists: Tells of a reader by its name, and blocks; None: nobody can tell.
    """
    lost = []
    for name in [name for name, reader in readers.items() if reader.is_lost(now)]:
        if await asyncio.to_thread(process_exists, name) and (reader := readers.get(name)) is not None:
            logger.warning("a shared group waits for its reader %s: it is not heard, but its process exists", name)
            reader.extend_timeout(now)
        else:
            lost.append(name)
    return lost


class PipeReader:
    """A reader on the group's node."""

    def __init__(self, wish: Callable[[int], None], leave: Callable[[], None], ended: Callable[[], None]) -> None:
        """`wish` and `leave`: what it does; `ended`: it holds nothing any more."""
        self.channel = ShareChannel()
        self._request, self._leave, self._ended = wish, leave, ended
        self._held: dict[int, BatchHandle] = {}
        self._forget: tuple[str, ...] = ()
        self._state: bytes | None = None
        self._loop = asyncio.get_running_loop()
        self._since = time.monotonic()
        self._loop.add_reader(self.channel.credits_fd, self._credits)
        self._loop.add_reader(self.channel.releases_fd, self._released)
        self._reads = True

    def send(self, shared: SharedBatch, skipped: int) -> None:
        """Write about a batch; what it holds stays where it is until it lets go."""
        # Its slot is not filled again while the reader may look at it.
        self._held[shared.batch_handle.batch.number] = shared.batch_handle
        forget, self._forget = self._forget, ()
        self._put(shared.frame(skipped, forget, shared.batch, self._state))
        self._state = shared.state

    def notify(self, text: str) -> None:
        """Write it."""
        self._put(pickled_frame(NoticeFrame(text)))

    def finish(self, end: EndFrame) -> None:
        """Write that it is over."""
        self._put(pickled_frame(end))

    def _put(self, frame: bytes) -> None:
        if self._reads and not self.channel.put(frame):
            self._loop.add_writer(self.channel.write_fd, self._flush)

    def _flush(self) -> None:
        if self.channel.flush():
            self._loop.remove_writer(self.channel.write_fd)

    def forget(self, tokens: tuple[str, ...]) -> None:
        """Say so with the next batch."""
        self._forget += tokens

    def is_lost(self, now: float) -> bool:
        """Tell whether it has never opened its pipes: that it closes them is seen at once."""
        return not self.channel.opened and now - self._since > OPEN_S

    def extend_timeout(self, now: float) -> None:
        """Give it time to open its pipes."""
        self._since = now

    def _credits(self) -> None:
        granted = self.channel.credits()
        # None: the reader has closed its end, or its process is gone.
        if granted is None:
            self._stop()
            self._leave()
        elif granted:
            self._request(granted)

    def _stop(self) -> None:
        if self._reads:
            self._reads = False
            self._loop.remove_reader(self.channel.credits_fd)
            self._loop.remove_writer(self.channel.write_fd)
            self.channel.close_messages()

    def _released(self) -> None:
        released = self.channel.released()
        if released is None:
            if self._reads:  # it is dead, and this end was looked at first
                self._stop()
                self._leave()
            self.close()
            self._ended()
            return
        for number in released:
            self._held.pop(number, None)

    def close(self) -> None:
        """Close the pipes."""
        self._stop()
        self._loop.remove_reader(self.channel.releases_fd)
        self.channel.close()
        self._held.clear()


class StoreReader:
    """A reader that asks by actor calls: it is elsewhere, or may not open this process's files."""

    def __init__(self, wish: Callable[[int], None], timeout_s: float) -> None:
        self._request, self._timeout_s = wish, timeout_s
        self._pending: deque[asyncio.Future[tuple[bytes, list[Any]]]] = deque()
        self._ended: bytes | None = None
        self._state: bytes | None = None
        self._noticed = 0
        """Calls that brought no entry: for each of them the reader asks once more."""
        self.last_seen = time.monotonic()

    async def take(self) -> tuple[bytes, list[Any]]:
        """Return the next frame, and in a list the reference of a batch's columns: Ray passes that on."""
        self.last_seen = time.monotonic()
        if self._ended is not None:
            return self._ended, []
        future: asyncio.Future[tuple[bytes, list[Any]]] = asyncio.get_running_loop().create_future()
        self._pending.append(future)
        # A call is the credit of a reader that has no pipe.
        if self._noticed:
            self._noticed -= 1
        else:
            self._request(1)
        return await future

    def send(self, shared: SharedBatch, skipped: int) -> None:
        """Answer its oldest call."""
        reference, batch = shared.stored
        self._send_response(shared.frame(skipped, (), batch, self._state), [reference])
        self._state = shared.state

    def _send_response(self, frame: bytes, references: list[Any]) -> None:
        future = self._pending.popleft()
        if not future.done():
            future.set_result((frame, references))

    def notify(self, text: str) -> None:
        """Answer its oldest call with that."""
        if self._pending:
            self._noticed += 1
            self._send_response(pickled_frame(NoticeFrame(text)), [])

    def finish(self, end: EndFrame) -> None:
        """Answer all its calls."""
        self._ended = pickled_frame(end)
        while self._pending:
            self._send_response(self._ended, [])

    def forget(self, tokens: tuple[str, ...]) -> None:
        """It has none of them."""

    def is_lost(self, now: float) -> bool:
        """Tell whether it has not spoken for too long."""
        return now - self.last_seen > self._timeout_s

    def extend_timeout(self, now: float) -> None:
        """Give it time to speak."""
        self.last_seen = now

    def close(self) -> None:
        """Let its calls go."""
        if self._ended is None:
            self.finish(EndFrame(0))
