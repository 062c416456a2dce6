"""A journal's copy in a bucket: written behind the one on the controller's node, and read where that is gone.

A controller goes on from its node's journal.  The copy is for another program, on another machine: it ends with an
entry about a second old, and what stands before that is whole.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from pecan_ray import storage
from pecan_ray.errors import JournalError, PecanError, SourceError, SourceNotFoundError, describe_error
from pecan_ray.job.journal_slices import JournalSlice, SliceKind, in_order, next_slice, slice_named
from pecan_ray.storage.retry import RequestCancelledError, unless_given_up

logger = logging.getLogger("pecan_ray.controller")

JOB = "job"
"""The object that is written last, and removed first: where it is, there is a copy to go on from."""
EVERY_S = 1.0
"""What was added meanwhile is one object: a lost node takes so much with it, and a bucket bills requests."""
PATIENCE_S = 4.0
"""Requests are tried again for so long: less than after which a job says that its storage makes it wait."""
AGAIN_S = 10.0
"""After requests have failed for `PATIENCE_S`, the next try comes after this time."""
BEGIN_S = 30.0
"""Longest wait for the bucket when a job begins: a place that cannot be written to is refused then, and not later."""
END_S = 10.0
"""Longest wait for the bucket when a job ends."""
READS = 5
"""A copy that is written meanwhile is looked at so often."""


@dataclass
class _CopyProgress:
    """A file that is copied."""

    fd: int
    whole: JournalSlice
    """The part of the file that is to be in the bucket."""
    stored: list[JournalSlice] = field(default_factory=list)
    before: list[list[JournalSlice]] = field(default_factory=list)
    """What was written of others, whose place it takes once its base is there."""


# Why not the journal itself:
# docs/decisions/restart-and-journal.md#53-a-journal-in-a-bucket-is-a-copy
class JournalCopy:
    """Copies the files of a journal into a bucket, on a thread of its own: nobody waits for a request but at the ends.

    Each process writes into a folder of its own, with a number above those that are there.  It counts as soon as the
    job lies in it, behind all that the process has begun with; then what its predecessors have written goes.
    """

    def __init__(self, url: str, actor: str, job: bytes, journal: tuple[int, int], listings: tuple[int, int]) -> None:
        """`url`: of all runs of the job; `actor`: what this process and its predecessors are; `job`: what to keep.

        `journal`, `listings`: descriptors of the files, which this object closes, and how many bytes they have.
        """
        self._url, self._actor, self._job = url, actor, job
        self.folder = ""
        """Of this process, once it has one."""
        self._others: list[str] = []
        """Folders of predecessors."""
        self._lock = threading.Lock()
        """Guards the files."""
        self._files: dict[SliceKind, _CopyProgress] = {
            "listings": _CopyProgress(listings[0], JournalSlice("listings", 0, 0, 0, listings[1])),
            "journal": _CopyProgress(journal[0], JournalSlice("journal", 0, 0, 0, journal[1])),
        }
        """In the order in which they are copied: a page before the entry about it."""
        self._changed, self._ended, self._given_up = threading.Event(), threading.Event(), threading.Event()
        self._keep = self._logged = False
        self._thread = threading.Thread(target=self._run, name="pecan-journal-copy", daemon=True)

    def begin(self) -> list[str]:
        """Write what there is, before the job begins; return the folders of other runs.  Raises PecanError."""
        # Nobody sets this event: it is about the patience alone.
        with unless_given_up(threading.Event(), patience_s=BEGIN_S):
            others = self._take_folder()
            self._write_all()
        self._thread.start()
        return others

    def begin_behind(self) -> None:
        """Write what there is while the job goes on already."""
        self._changed.set()
        self._thread.start()

    def note_size(self, journal: int, listings: int) -> None:
        """Copy so many bytes of the files, soon."""
        with self._lock:
            for file, nbytes in ((self._files["journal"], journal), (self._files["listings"], listings)):
                file.whole = replace(file.whole, stop=nbytes)
        self._changed.set()

    def replaced(self, fd: int, nbytes: int) -> None:
        """Let another file take the place of the journal's."""
        with self._lock:
            old = self._files["journal"]
            # The new file counts once its snapshot is in the bucket as a whole: that is its base (`in_order`).
            whole = JournalSlice("journal", old.whole.generation + 1, nbytes, 0, nbytes)
            self._files["journal"] = _CopyProgress(fd, whole, before=[*old.before, old.stored])
        os.close(old.fd)
        self._changed.set()

    def end(self, *, keep: bool) -> None:
        """Remove the copy, or complete it, behind; `join` waits for that."""
        self._keep = keep
        # Ends a request that is being tried again at this moment.
        self._given_up.set()
        self._ended.set()
        self._changed.set()

    def join(self) -> None:
        """Wait until it is removed or complete, for as long as that is worth."""
        self._thread.join(END_S)
        if self._thread.is_alive():
            logger.warning("the bucket does not answer: %s may not be %s", *self._reported_end())

    def _reported_end(self) -> tuple[str, str]:
        return self.folder or self._url, "complete" if self._keep else "removed: remove it"

    # --- the thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ended.is_set():
            self._changed.wait()
            self._changed.clear()
            pause_s = EVERY_S
            try:
                with unless_given_up(self._given_up, patience_s=PATIENCE_S):
                    if not self.folder:
                        self._take_folder()
                    self._write_all()
                self._logged = False
            except RequestCancelledError:
                break
            except Exception as error:  # whatever it is, the job has the journal of its node
                if not self._ended.is_set():  # whose file is cut then
                    self._say(error)
                self._changed.set()
                # Nothing need be added before the next try: what is overdue is copied as soon as the bucket answers.
                pause_s = AGAIN_S
            # Decision 53: what is added within a second becomes one object, and one request.
            self._ended.wait(pause_s)
        try:
            with unless_given_up(threading.Event(), patience_s=END_S / 2):
                if not self._keep:
                    self._remove()
                elif self.folder:
                    self._write_all()
        except (PecanError, OSError) as error:
            logger.warning("%s is not %s: %s", *self._reported_end(), error)
        for file in self._files.values():
            os.close(file.fd)

    def _say(self, error: Exception) -> None:
        if not self._logged:
            self._logged = True
            logger.warning(
                "the journal cannot be copied to %s, and will be when that is possible: %s",
                self._url,
                describe_error(error),
            )

    def _take_folder(self) -> list[str]:
        """Give this process a folder; return those of other runs."""
        there = list(_folders(self._url))
        number = 1 + max((int(name.partition("-")[0]) for name in there), default=0)
        self.folder = f"{self._url}/{number:06}-{self._actor}"
        mine = [name for name in there if name.partition("-")[2] == self._actor]
        self._others = [f"{self._url}/{name}" for name in mine]
        return [f"{self._url}/{name}" for name in there if name not in mine]

    def _write_all(self) -> None:
        """Write what is not there yet; remove what that has taken the place of."""
        with self._lock:  # of one moment: pages that are added from now on, entries about them would lack
            # Descriptors of their own, because `replaced` closes the old ones while requests are under way.
            files = [(file, file.whole, os.dup(file.fd)) for file in self._files.values()]
        try:
            for file, whole, fd in files:
                self._write(file, whole, fd)
        finally:
            for *_, fd in files:
                os.close(fd)
        if self._job:
            # Decision 53: behind all the rest, because where the job is, a copy counts.
            storage.write_file(f"{self.folder}/{JOB}", self._job)
            self._job = b""
        while self._others:
            _remove_folder(self._others[-1])
            # Behind the removal, so that one that fails is tried again.
            self._others.pop()

    def _write(self, file: _CopyProgress, whole: JournalSlice, fd: int) -> None:
        while (step := next_slice(file.stored, whole)) is not None:
            if self._ended.is_set() and not self._keep:
                raise RequestCancelledError
            new, taken = step
            data = os.pread(fd, new.stop - new.start, new.start)
            if len(data) < new.stop - new.start:
                raise OSError(f"the {new.kind} of this node is shorter than what was written")
            storage.write_file(f"{self.folder}/{new.name}", data)
            kept = len(file.stored) - taken
            # A slice that begins where the new one does has its name, and was written over.
            gone = [one for one in file.stored[kept:] if one.name != new.name]
            file.stored[kept:] = [new]
            self._delete(gone)
        while file.before:
            self._delete(file.before[-1])
            file.before.pop()

    def _delete(self, slices: list[JournalSlice]) -> None:
        for one in slices:
            storage.delete_file(f"{self.folder}/{one.name}")

    def _remove(self) -> None:
        if not self.folder:
            # This also finds what predecessors of this process have left.
            self._take_folder()
        for folder in (self.folder, *self._others):
            _remove_folder(folder)


def _folders(url: str) -> Iterator[str]:
    """Yield the names of what processes of a job have written, in order."""
    names = {file.path[len(url) + 1 :].partition("/")[0] for file in storage.list_folder(url)}
    yield from sorted(name for name in names if name.partition("-")[0].isdigit())


def _remove_folder(folder: str) -> None:
    """Remove what a process has written, first what makes it count."""
    storage.delete_file(f"{folder}/{JOB}")
    for file in list(storage.list_folder(folder)):
        storage.delete_file(file.path)


# --- reading ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RemoteCopy:
    """What lies in a bucket of a job."""

    where: str
    job: bytes
    journal: bytes
    listings: bytes


def read_copy(url: str) -> RemoteCopy | None:
    """Return the newest copy of a job's journal; None if there is none.  Raises JournalError if it cannot be read."""
    for _ in range(READS):
        try:
            return _read(url)
        except SourceNotFoundError as error:  # it has just been compacted
            gone = error
            time.sleep(EVERY_S / 10)
        except SourceError as error:
            raise JournalError(f"the journal below {url} cannot be read: {error}", path=url) from error
    raise JournalError(f"the journal below {url} changes all the time: {gone}", path=url) from gone


def _read(url: str) -> RemoteCopy | None:
    found: dict[str, list[Any]] = {}
    for file in storage.list_folder(url):
        folder, _, name = file.path[len(url) + 1 :].partition("/")
        found.setdefault(folder, []).append(JOB if name == JOB else slice_named(name, file.size))
    counting = [name for name, files in found.items() if JOB in files and name.partition("-")[0].isdigit()]
    if not counting:
        return None
    # Numbers have six digits, so the largest name is that of the newest process.
    folder = f"{url}/{max(counting)}"
    job = storage.read_all(f"{folder}/{JOB}")
    journal = _bytes_of(folder, "journal")  # first: each page is written before the entry about it
    return RemoteCopy(folder, job, journal, _bytes_of(folder, "listings"))


def _bytes_of(folder: str, kind: SliceKind) -> bytes:
    found = (slice_named(file.path[len(folder) + 1 :], file.size) for file in storage.list_folder(folder))
    data = b""
    for one in in_order((one for one in found if one is not None), kind):
        if one.start == len(data):
            data += storage.read_all(f"{folder}/{one.name}")
        # A process that writes meanwhile has joined slices.
        # Decision 53: every beginning of a journal is a journal, so what stands before the gap can be used.
        elif one.start > len(data):
            break
    return data
