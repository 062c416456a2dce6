"""What a group and its readers hand each other beside batches."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from pecan_ray.job.share_group import Place, ReaderStats
from pecan_ray.job.share_trials import TrialRank
from pecan_ray.runtime.received import Received
from pecan_ray.transport.share_channel import ChannelAddress

PREFIX = "pecan:share:"
"""How the names of groups' actors begin."""

SharedPart: TypeAlias = tuple[str, str]
"""What something is, and a hash or value of it."""


class SharedRun(Protocol):
    """Batches of a group's own job, as `pecan_ray.Batches` gives them."""

    def next_received(self) -> Received:
        """Return the next batch; raises StopIteration at the end."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return where the run stands."""
        ...

    def report(self) -> Any:
        """Return what happened so far."""
        ...

    def scale(self, *, local: int, remote: int) -> None:
        """Change the numbers of workers."""
        ...

    def close(self) -> None:
        """End the run."""
        ...


RunMaker: TypeAlias = Callable[[int | None, int | None, Mapping[str, Any] | None], SharedRun]
"""Begins a run of so many epochs in all: with the epoch of a number, or from a state."""


@dataclass(frozen=True)
class WindowOnDisk:
    """What a group's window may hold beside its memory."""

    nbytes: int = 0
    folder: Path | None = None
    """On the group's node."""


@dataclass(frozen=True)
class GroupPlan:
    """What a group runs; it is sent by its first reader."""

    make: bytes
    """A `RunMaker`, pickled."""
    pipeline: str
    parts: tuple[SharedPart, ...]
    """All in which readers must agree."""
    window_bytes: int
    linger_s: float
    reader_timeout_s: float
    max_lag: int | None
    disk: WindowOnDisk = WindowOnDisk()
    patience_s: float = 60.0
    """Seconds that readers wait for one that reads nothing."""
    first_epoch: int = 0
    """The epoch with which the group begins."""


@dataclass(frozen=True)
class JoinRequest:
    """What a reader says when it comes."""

    reader: str
    """A name for people, and no other reader's."""
    node: str
    by_pipe: bool
    """It can open the group's memory files; else batches come by Ray's object store."""
    epochs: int | None
    parts: tuple[SharedPart, ...]
    behind: int = -1
    """The last epoch of this group that an earlier reader of the same program has read; -1: there was none."""
    process: str = ""
    """Ray's id of the reader's process."""
    of: TrialRank | None = None
    """None: it reads all batches."""


@dataclass(frozen=True)
class Joined:
    """A reader is in."""

    channel: ChannelAddress | None
    since: Place
    """Where its epochs begin."""


@dataclass(frozen=True)
class GroupStats:
    """A group so far."""

    name: str
    pipeline: str
    fingerprint: str
    node: str
    place: Place
    readers: tuple[ReaderStats, ...]
    window_bytes: int
    window_entries: int
    run: Any = None
    """The report of its run; None where there is none, or it was not asked for."""
    held_back_s: tuple[tuple[str, float], ...] = ()
    """Readers that have held the others back longest, and for how many seconds."""


@dataclass(frozen=True)
class BatchFrame:
    """A batch on its way to a reader."""

    skipped: int
    forget: tuple[str, ...]
    """Memory files of workers that have ended since the last one."""
    batch: bytes
    """A `BatchDescriptor`, pickled once for all readers."""
    state: bytes | None = None
    """The run's newest state as of this batch, pickled once for all; None: this reader has it, or there is none."""
    batches_since: int = 0
    """Batches that the run has given since that state, this one included."""


@dataclass(frozen=True)
class EndFrame:
    """There will be no more batches."""

    skipped: int
    error: BaseException | None = None
    left_behind: str = ""
    """Why the others go on without this reader, which may go on by itself; "": they do not."""


@dataclass(frozen=True)
class NoticeFrame:
    """What a reader that waits should know."""

    text: str


Frame: TypeAlias = BatchFrame | EndFrame | NoticeFrame


def pickled_frame(frame: Frame) -> bytes:
    """Pickle what goes to a reader."""
    return pickle.dumps(frame, pickle.HIGHEST_PROTOCOL)
