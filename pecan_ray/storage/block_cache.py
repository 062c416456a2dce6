"""Bytes of buckets that stay on the node: read once, kept as blocks on its disk, for all jobs and workers there.

A block is named by the hash of its bytes where a digest of the dataset tells it, else by its object, version and
number.  What a digest tells is also verified when it comes: bytes that are others are asked for once more, and then are
an error.  What is wrong with the disk costs speed and nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from pecan_ray.cache.eviction import EvictionPolicy
from pecan_ray.cache.fetch_claims import Fetcher
from pecan_ray.caching.store import EntryStore
from pecan_ray.errors import CacheError, CorruptSourceError, SourceReplacedError
from pecan_ray.storage.blocks import BlockPiece, BlockRun, ObjectBlocks, cut, in_row, overlap, runs_of
from pecan_ray.storage.co_readers import ReaderRegistry, dataset_of
from pecan_ray.storage.digest import BLOCK_BYTES, ObjectDigest
from pecan_ray.storage.ranges import FileRange
from pecan_ray.storage.single_flight import alone
from pecan_ray.storage.spread import BlockMisses, SentBlock, SpreadBlocks

# Some MB at most: a path, a version and a number each.
SIZES_KNOWN = 10_000
"""Of so many objects the size is remembered."""
SIZE = -1
"""The number of what is kept beside later blocks of an object, so that its size is known where its first one is not."""

logger = logging.getLogger("pecan_ray.storage")

Ask: TypeAlias = Callable[[int, int | None, str], FileRange]
"""Asks a store for bytes: from, to (None: to the end), of which version."""


class BlockCache:
    """The blocks on this node's disk; any thread may use it, and any process another one on the same folder."""

    def __init__(
        self,
        folder: Path | None,
        max_bytes: int,
        digests: Iterable[Mapping[str, ObjectDigest]] = (),
        *,
        job: str = "",
        policy: EvictionPolicy = "resident",
        others: SpreadBlocks | None = None,
    ) -> None:
        """`folder`: None: nothing is kept, and what `digests` tell of is verified; these by the objects' paths.

        `job`: the name of one that reads first what is here: where several do, all that comes is kept for the others.
        `others`: the nodes among which blocks are spread; None: all that comes is kept here.
        """
        self._known: dict[str, ObjectDigest] = {}
        for one in digests:
            self._known.update(one)
        self._lock = threading.Lock()
        """Guards all below."""
        self._logged: set[str] = set()
        self._sizes: OrderedDict[tuple[str, str], int] = OrderedDict()
        """Of objects that came, by path and version: the newest."""
        self._store: EntryStore | None = None
        self._others = others
        self._found_elsewhere: frozenset[str] = frozenset()
        """Blocks that other nodes had when they were looked for last."""
        self._reader_registry: ReaderRegistry | None = None
        """Who else reads first what is here; None: this one does not."""
        self._policy, self._fetching, self._job = policy, folder, job
        self.nbytes = 0
        """Bytes that were read here, or from other nodes, instead of from a bucket."""
        try:
            if folder is not None:
                self._store = EntryStore(folder, max_bytes=max_bytes, policy=policy, by_kind=True)
                self._reader_registry = ReaderRegistry(self._store, job) if job else None
        except CacheError as error:
            self._say(f"nothing is kept: {error.message}")

    def read(self, ask: Ask, path: str, start: int, stop: int | None, version: str) -> FileRange:
        """Return bytes `start` to `stop` of an object: from here, or from `ask`, and then they are kept.

        Raises SourceReplacedError where a digest tells of another version, CorruptSourceError where it tells of other
        bytes than those that come twice.
        """
        known = self._known_of(path, version)
        # A weak ETag ("W/") may stay the same while the bytes change.
        if not version or (known is None and version.startswith("W/")):
            return ask(start, stop, version)  # nothing names its bytes
        reading = ObjectBlocks(path, version, known)
        first = start // BLOCK_BYTES
        self._note_reader(path)
        with self._missing(reading) as missed:
            size = self._size(reading, first)
            if size is None:
                asked = BlockRun(first, first + 1 if stop is None else -(-stop // BLOCK_BYTES))
                size = self._size_elsewhere(reading, missed, asked)
            if size is None:
                with alone(self._fetching, reading.key(first)):
                    size = self._size(reading, first)  # another one may just have fetched it
                    if size is None:
                        return self._fetch_first(ask, reading, missed, start, stop)
            end = size if stop is None else min(stop, size)
            # `max`: a range that begins behind the end has no blocks.
            blocks = self._blocks(ask, reading, missed, BlockRun(first, max(first, -(-end // BLOCK_BYTES))), size)
        found = cut(b"".join(data for data, _ in blocks), first * BLOCK_BYTES, start, stop)
        here = sum(overlap(run, start, end) for _, run in blocks if run is not None)
        with self._lock:
            self.nbytes += here
        return FileRange(found, size, version)

    def _fetch_first(
        self, ask: Ask, reading: ObjectBlocks, missed: BlockMisses, start: int, stop: int | None
    ) -> FileRange:
        """Return a range of an object of which nothing is known yet, not even its size, and keep its blocks."""
        first = start // BLOCK_BYTES
        # Whole blocks, because a part of one could not be kept.
        run = BlockRun(first, first if stop is None else -(-stop // BLOCK_BYTES))
        piece = ask(run.start, None if stop is None else run.stop, reading.version)
        self._keep(reading, first, piece, missed)
        return FileRange(cut(piece.data, run.start, start, stop), piece.size, reading.version)

    def size(self, path: str, version: str) -> int | None:
        """Return the size of a version of an object, if a digest or what is kept of it tells it."""
        known = self._known_of(path, version)
        return self._size(ObjectBlocks(path, version, known), 0) if version else None

    def holds(self, path: str, version: str, start: int, stop: int | None) -> bool:
        """Tell whether bytes `start` to `stop` (None: to the end) of a version of an object are all here."""
        reading = self._named(path, version)
        blocks = None if reading is None else self._numbers(reading, start, stop)
        return (
            reading is not None
            and blocks is not None
            and all(self._holds(reading, number) or reading.key(number) in self._found_elsewhere for number in blocks)
        )

    def look(self, ranges: Iterable[tuple[str, str, int, int | None]]) -> None:
        """Look which blocks of ranges (path, version, start, stop) other nodes have, for `holds`."""
        if self._others is None:
            return
        keys: list[str] = []
        for path, version, start, stop in ranges:
            if (reading := self._named(path, version)) is not None:
                blocks = self._numbers(reading, start, stop) or ()
                keys += [reading.key(number) for number in blocks if not self._holds(reading, number)]
        self._found_elsewhere = frozenset(self._others.sizes(keys))

    def _named(self, path: str, version: str) -> ObjectBlocks | None:
        """Return how the blocks of a version of an object are named; None: none can be here."""
        known = self._known.get(path)
        other = known is not None and known.version != version
        return None if not version or other else ObjectBlocks(path, version, known)

    def _numbers(self, reading: ObjectBlocks, start: int, stop: int | None) -> range | None:
        """Return the blocks that a range lies in; None: it is not known where it ends."""
        end = self._size(reading, start // BLOCK_BYTES) if stop is None else stop
        return None if end is None else range(start // BLOCK_BYTES, -(-end // BLOCK_BYTES))

    @property
    def is_shared(self) -> bool:
        """Return whether jobs that read the same data read cached parts first: on this node, or over all nodes."""
        with self._lock:
            company = self._reader_registry if self._store is not None else None
            if company is None:
                return False
            here, datasets = company.is_read_elsewhere(), company.datasets
        return here or self._met(datasets)

    def _met(self, datasets: Iterable[str]) -> bool:
        """Tell whether jobs on other nodes read some datasets; this one does."""
        others, read = self._others, list(datasets)
        if others is None:
            return False
        # Renewed here too: a worker that only looks for work counts as a reader for other nodes as well.
        for dataset in read:
            others.reads(self._job, dataset)
        return any(map(others.several, read))

    def _note_reader(self, path: str) -> None:
        with self._lock:
            company = self._reader_registry if self._store is not None else None
            if company is not None:
                company.reads(dataset_of(path))
        if company is not None and self._others is not None:
            self._others.reads(self._job, dataset_of(path))

    def bound(self, cache_limits: Mapping[str, int] | None) -> None:
        """Bound what is kept of datasets, by the names that `dataset_of` gives; None: nobody bounds that."""
        with self._lock:
            if self._others is not None:
                self._others.cache_limits = tuple((cache_limits or {}).items())
            if self._store is None:
                return
            self._store.last_error = ""
            # The store does not raise: what is wrong stands in `last_error`, which is emptied before so that
            # nothing old is told.
            self._store.bound(cache_limits)
            trouble = self._store.last_error
        self._say(trouble)

    def close(self) -> None:
        """Let go of the folder."""
        with self._lock:
            if self._store is not None:
                self._store.close()
                self._store = None

    def _known_of(self, path: str, version: str) -> ObjectDigest | None:
        known = self._known.get(path)
        if known is not None and version and known.version != version:
            raise SourceReplacedError(
                f"{path} is not the version of which its digest was made ({version}, and not {known.version}): make "
                "the digest again by `pecan cache digest`, or bring back what was there.",
                path=path,
            )
        return known

    def _size(self, reading: ObjectBlocks, number: int) -> int | None:
        """Return an object's size, if a digest tells it, or a read before this one, or what is kept of it."""
        if reading.known is not None:
            return reading.known.size
        with self._lock:
            size = self._sizes.get((reading.path, reading.version))
            # A dict, for the order without asking twice where `number` is 0.
            for block in {number: None, 0: None, SIZE: None} if self._store is not None and size is None else ():
                about = self._store.about(reading.key(block)) if self._store is not None else None
                size = about[1] if about is not None else size
        return size

    def _blocks(
        self, ask: Ask, reading: ObjectBlocks, missed: BlockMisses, run: BlockRun, size: int
    ) -> list[BlockPiece]:
        """Return the bytes of blocks, with which they are where they were here; others come in one request each run.

        What others fetch is waited for last, so that nobody waits for one that waits.
        """
        # Decision 77: the answer also says who fetches what is missing, so turns cost no question of their own.
        self._ask_others(reading, missed, run.numbers)
        theirs = [number for number in run.numbers if reading.key(number) in missed.fetched_by_others]
        pieces = self._found_or_fetched(ask, reading, missed, run, size)
        if theirs and self._others is not None:
            self._others.end(missed)  # what has come and is kept nowhere nobody shall wait for
            for number in theirs:
                self._others.wait(missed, reading.key(number))
            for late in runs_of(theirs):
                pieces |= self._found_or_fetched(ask, reading, missed, late, size)
        return list(in_row(pieces, run.first))

    def _found_or_fetched(
        self, ask: Ask, reading: ObjectBlocks, missed: BlockMisses, run: BlockRun, size: int
    ) -> dict[int, BlockPiece]:
        """Return blocks by their numbers, or by those that runs of them begin with, but for what others fetch."""
        pieces: dict[int, BlockPiece] = {}
        number, looked = run.first, -1
        while number < run.last:
            key = reading.key(number)
            found = self._found(reading, missed, number)
            if found is not None:
                pieces[number] = found, BlockRun(number, number + 1)
            if found is not None or key in missed.fetched_by_others:
                number += 1
                continue
            missing = self._missing_run(reading, missed, number, run.last)
            stop = min(missing.stop, size)
            # Decision 54: one fetches and the others wait, for five seconds at most: a quota may make the one slow.
            with alone(self._fetching, key) as waited:
                # Only once for each block: one that is there and cannot be read would be looked for for ever.
                came = number != looked and self._already_fetched(reading, number, waited)
                looked = number
                if came:
                    missed.sizes[key] = size
                    continue
                piece = self._fetch_checked(ask, reading, missing, stop)
                pieces[number] = piece.data, None
                if len(piece.data) < stop - missing.start:
                    break  # whoever reads it says that there is less than was listed
                self._keep(reading, number, piece, missed)
            number = missing.last
        return pieces

    def _found(self, reading: ObjectBlocks, missed: BlockMisses, number: int) -> bytes | memoryview | None:
        """Return a block of this node, or of another one that says to have it."""
        found = self._find(reading, number)
        # `pop`: a node that says to have a block and does not give it is asked for it once; then the bucket is.
        if found is None and missed.sizes.pop(reading.key(number), None) is not None:
            return self._of_others(reading, number)
        return found

    def _missing_run(self, reading: ObjectBlocks, missed: BlockMisses, first: int, last: int) -> BlockRun:
        """Return the blocks from one on that are nowhere, and come in one request."""
        behind = first + 1
        while behind < last and not self._holds(reading, behind) and missed.is_missing(reading.key(behind)):
            behind += 1
        return BlockRun(first, behind)

    def _fetch_checked(self, ask: Ask, reading: ObjectBlocks, run: BlockRun, stop: int) -> FileRange:
        """Return what a store sends of blocks, asked for again if a digest tells of other bytes."""
        piece = ask(run.start, stop, reading.version)
        wrong = reading.first_mismatch(run.first, piece.data)
        if wrong is None:
            return piece
        # Once more, because what is damaged on its way comes whole the next time.
        self._say(f"other bytes than its digest tells of: {reading.path} from byte {wrong} on; asked for again")
        piece = ask(run.start, stop, reading.version)
        wrong = reading.first_mismatch(run.first, piece.data)
        if wrong is not None:
            raise CorruptSourceError(
                f"{reading.path} does not have the bytes from {wrong} on that its digest tells of, though it is the "
                f"same version ({reading.version}), and was read twice: write it again, or make the digest again by "
                "`pecan cache digest`.",
                path=reading.path,
                offset=wrong,
            )
        return piece

    def _holds(self, reading: ObjectBlocks, number: int) -> bool:
        with self._lock:
            return self._store is not None and reading.key(number) in self._store

    def _already_fetched(self, reading: ObjectBlocks, number: int, waited: bool) -> bool:
        """Tell whether another one has just fetched a block."""
        if self._holds(reading, number):
            return True
        # Without a wait nobody on this node has fetched it. With one it may have been sent to the node that
        # it belongs to.
        return waited and self._others is not None and bool(self._others.sizes([reading.key(number)]))

    @contextlib.contextmanager
    def _missing(self, reading: ObjectBlocks) -> Iterator[BlockMisses]:
        """Give what a read notes the blocks in that it misses; at the end others may fetch what it has not."""
        if self._others is None:
            yield BlockMisses(Fetcher("", 0, 0), 0.0)
            return
        missed = self._others.new_misses()
        try:
            yield missed
        finally:
            self._others.end(missed)

    def _ask_others(self, reading: ObjectBlocks, missed: BlockMisses, numbers: Iterable[int]) -> None:
        """Ask other nodes for blocks that are not here, each once."""
        if self._others is None:
            return
        keys = [reading.key(number) for number in numbers if not self._holds(reading, number)]
        self._others.ask(missed, [key for key in keys if missed.is_missing(key) and key not in missed.mine])

    def _size_elsewhere(self, reading: ObjectBlocks, missed: BlockMisses, run: BlockRun) -> int | None:
        """Return an object's size, if another node has some of its blocks, or another read brings the first of them."""
        if self._others is not None:
            self._ask_others(reading, missed, (run.first,))
            self._others.wait(missed, reading.key(run.first))
            if not missed.sizes:
                self._ask_others(reading, missed, run.numbers)
        size = next(iter(missed.sizes.values()), None)
        if size is not None:
            self._remember_size(reading, size)
        return size

    def _of_others(self, reading: ObjectBlocks, number: int) -> bytes | None:
        """Return a block that another node has, if it is what a digest tells of."""
        found = self._others.get(reading.key(number)) if self._others is not None else None
        if found is not None and reading.first_mismatch(number, found) is not None:
            self._say("other bytes than a digest tells of come from another node, and are read from the bucket")
            return None
        return found

    def _find(self, reading: ObjectBlocks, number: int) -> bytes | memoryview | None:
        with self._lock:
            if self._store is None:
                return None
            self._store.last_error = ""
            found = self._store.get(reading.key(number))
            trouble = self._store.last_error
        self._say(trouble)
        return found

    def _keep(self, reading: ObjectBlocks, first: int, piece: FileRange, missed: BlockMisses) -> None:
        """Keep the whole blocks of a piece that begins with a block."""
        view, dataset = memoryview(piece.data), dataset_of(reading.path)
        met = self._others is not None and self._others.several(dataset)
        self._remember_size(reading, piece.size)
        if first and reading.known is None:
            self._keep_here(reading.key(SIZE), dataset, memoryview(b"\0"), piece.size, met)
        for at in range(0, len(view), BLOCK_BYTES):
            block, number = view[at : at + BLOCK_BYTES], first + at // BLOCK_BYTES
            if len(block) < BLOCK_BYTES and first * BLOCK_BYTES + at + len(block) != piece.size:
                return  # it goes on
            key = reading.key(number)
            if self._others is not None and self._others.elsewhere(key):
                if self._others.put(SentBlock(key, dataset, bytes(block), piece.size, missed.by, met)):
                    missed.mine.discard(key)  # its coming tells
            else:
                self._keep_here(key, dataset, block, piece.size, met)

    def _keep_here(self, key: str, dataset: str, block: memoryview, size: int, met: bool) -> None:
        with self._lock:
            if self._store is None:
                return
            self._store.last_error = ""
            if self._reader_registry is not None:
                # Decision 54: of several jobs each takes what comes soon after it has come: the oldest was read by all.
                self._store.policy = "fifo" if met or self._reader_registry.several(dataset) else self._policy
            self._store.put(key, dataset, [block], elements=size, seconds=0.0)
            trouble = self._store.last_error
        self._say(trouble)

    def _remember_size(self, reading: ObjectBlocks, size: int) -> None:
        with self._lock:
            self._sizes[reading.path, reading.version] = size
            if len(self._sizes) > SIZES_KNOWN:
                self._sizes.popitem(last=False)

    def _say(self, text: str) -> None:
        # The same trouble with another block is the same trouble, whatever it is called.
        kind = re.sub(r"\w*\d\w*", "", text.partition(":")[0])
        with self._lock:
            new = bool(text) and kind not in self._logged
            self._logged.add(kind)
        if new:
            logger.warning("bytes of buckets on this node: %s", text)
