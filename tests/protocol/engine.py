"""A model of an engine: leases in, batches out, with the positions that each of them stands for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias

from pecan_ray.job.blocks import RowRange
from pecan_ray.job.messages import LeftOutElement
from pecan_ray.plan.splits import OUTPUT_BITS, Lease, LeaseKey, Origin, origin_of
from pecan_ray.sampling.group_tails import tail_batches
from pecan_ray.sampling.spans import Span
from pecan_ray.sampling.tail_rounds import of_rank, tail_rounds
from tests.protocol.scenario import BAD, DEADLY, HANGING, Scenario

ModelPiece: TypeAlias = tuple[LeaseKey, int, int]
"""An output of an element: key of its split, number of the element, number of the output."""
WIDTH = 1 << OUTPUT_BITS


@dataclass
class ModelItem:
    """An output under way, or positions that yield nothing."""

    key: LeaseKey
    spans: list[Span]
    piece: ModelPiece | None = None
    bad: LeftOutElement | None = None
    deadly: bool = False
    hanging: Origin | None = None
    ends_run: bool = False
    """No output: the run ends here."""
    length: int | None = None
    """No output: the split ends here, behind so many elements."""


@dataclass
class Made:
    """A batch, or the rest that fills none."""

    epoch: int
    pieces: list[ModelPiece] = field(default_factory=list)
    spans: dict[LeaseKey, list[Span]] = field(default_factory=dict)
    row_parts: list[tuple[LeaseKey, int, int]] = field(default_factory=list)
    """The last positions of each output."""
    left_out: list[LeftOutElement] = field(default_factory=list)
    without_data: dict[LeaseKey, list[Span]] = field(default_factory=dict)
    """Of the spans, what yields nothing."""
    rank: int | None = None
    """Whom it is for, as a batch of a round;"""
    round: ModelPiece | None = None
    """which is named by its first output."""
    row_range: RowRange | None = None
    """Which part of the epoch its rows are, where these come in order."""
    ends_run: bool = False
    """All of a run is made."""
    partial: bool = False
    """It fills no batch, at the end of an assignment."""

    @property
    def rows(self) -> int:
        """Its number of elements."""
        return len(self.pieces)

    def add(self, item: ModelItem) -> None:
        """Take an item in."""
        if item.piece is not None:
            self.pieces.append(item.piece)
            self.row_parts.append((item.key, *item.spans[-1]))
        if item.spans:
            self.spans.setdefault(item.key, []).extend(item.spans)
        if item.bad is not None:
            self.left_out.append(item.bad)

    def carry(self, skipped_positions: Made) -> None:
        """Take positions over that yield nothing."""
        for key, spans in skipped_positions.spans.items():
            self.spans.setdefault(key, []).extend(spans)
            self.without_data.setdefault(key, []).extend(spans)
        self.left_out += skipped_positions.left_out
        skipped_positions.spans, skipped_positions.left_out = {}, []


def mixed(items: Iterable[ModelItem], others: Iterable[ModelItem], random: Random) -> Iterator[ModelItem]:
    """Yield the items of two splits that are read at a time, those of each in their order."""
    sides = [iter(items), iter(others)]
    while sides:
        side = random.choice(sides)
        item = next(side, None)
        if item is None:
            sides.remove(side)
        else:
            yield item


@dataclass(frozen=True)
class NeedsLease:
    """The engine wants another lease of a source."""

    branch: int
    reading: int = 0
    """So many others it works on: it goes on with these if there is none."""


@dataclass(frozen=True)
class Fatal:
    """The engine has come to an element that ends its process, or that it never comes to the end of."""

    hangs_at: Origin | None = None


Step: TypeAlias = Made | NeedsLease | Fatal | None
"""What an engine does next; None: it has made everything of its leases."""


class EngineModel:
    """Runs the plan of a scenario on the leases of one assignment."""

    def __init__(self, scenario: Scenario, epoch: int, random: Random) -> None:
        self._scenario, self._epoch, self._random = scenario, epoch, random
        self._items: deque[ModelItem] = deque()
        self._produced = Made(epoch)
        self._skipped_positions = Made(epoch)
        """Positions that yield nothing: the next batch carries them."""
        self._buckets: list[list[ModelItem]] = [[] for _ in scenario.bucket_sizes]
        """Outputs that are in no batch of their bucket yet, where there are any;"""
        self._round: deque[Made] = deque()
        """batches that are made and not told;"""
        self._full: deque[list[ModelItem]] = deque()
        """what is kept back, because the end of an epoch may have to divide it among ranks."""
        self._ends_epoch, self._batches = False, 0
        """What was given back by others is made into batches; so many batches were made of buckets."""
        self._rows = 0
        """Outputs so far, where only some are taken."""
        self._given: list[Lease] = []
        self.works: list[int] = []
        """Of each element that was worked on since this was taken last, how much work it was."""
        self.lengths: list[tuple[LeaseKey, int]] = []
        """Splits that were read to their ends since this was asked for last."""
        self._ended: set[int] = set()
        """Sources of which there are no more leases."""
        self._reading = 0
        """So many splits it was at work on when it wanted another one;"""
        self._denied = False
        """and there was none beside them."""
        self._held: Made | None = None
        """Of a whole plan: the last batch, which carries the positions that follow it without data."""
        self._tail: deque[Made] | None = None
        """What is yet to be told at the end."""

    def end(self, branch: int) -> None:
        """There are no more leases of a source, or none beside those that are worked on."""
        if self._reading:
            self._denied = True
        else:
            self._ended.add(branch)

    def _need(self, branch: int) -> NeedsLease:
        self._reading = len({item.key for item in self._items}) if self._scenario.streams > 1 else 0
        return NeedsLease(branch, self._reading)

    def _mixes_more(self) -> bool:
        """Tell whether to read another split beside those that are worked on."""
        return not self._denied and len({item.key for item in self._items}) in range(1, self._scenario.streams)

    def step(self) -> tuple[Step, int]:
        """Work until something is to be told; return it, and how many elements that took."""
        work_done = 0
        while self._tail is None:
            needed = next((branch for branch in range(len(self._scenario.sources)) if branch not in self._ended), None)
            if needed is not None and self._mixes_more():
                return self._need(needed), work_done
            made, more = self.run(ending=needed is None or self._denied)
            self._denied = False
            work_done += more
            if isinstance(made, Made) and self._scenario.serial:
                made, self._held = self._held, made
                if made is None:
                    continue
            if made is not None:
                return made, work_done
            if needed is not None:
                return self._need(needed), work_done
            self._tail = deque(self._ending())
        return (self._tail.popleft() if self._tail else None), work_done

    def _ending(self) -> Iterator[Made]:
        """Yield what comes when all leases were worked on: positions that yield nothing, and what fills no batch."""
        scenario, rest, skipped_positions, held = self._scenario, self._produced, self._skipped_positions, self._held
        if scenario.serial:
            for lease in self._given:
                skipped_positions.spans.setdefault(lease.key, []).extend(lease.spans)
        if scenario.serial or not (scenario.apart or self._buckets):
            rest.carry(skipped_positions)
        if held is not None:
            if not rest.rows:
                held.carry(rest)
            yield held
        if (scenario.serial or scenario.in_order) and not rest.rows:
            skipped_positions.carry(rest)
        if skipped_positions.spans or skipped_positions.left_out:
            yield skipped_positions
        for made in self.tail() if self._buckets else [rest]:
            made.partial = scenario.tail != "drop" or made.rank is None
            if made.spans or made.left_out:
                yield made

    def feed(self, lease: Lease) -> None:
        """Take a lease to work on."""
        self._given.append(lease)
        self._ends_epoch = self._ends_epoch or (lease.passed and self._scenario.ranks > 1)
        take = self._scenario.take
        if take is None or self._rows < take:
            read = self._read(lease)
            if self._scenario.streams == 1:
                self._items.extend(read)
            else:
                self._items = deque(mixed(self._items, read, self._random))
        if lease.ends_run:
            self._items.append(ModelItem(lease.key, [], ends_run=True))

    def run(self, *, ending: bool) -> tuple[Made | Fatal | None, int]:
        """Work until a batch is finished or more leases are needed; return it, and how many elements that took.

        `ending`: there are no more leases.
        """
        work_done, window, items = 0, self._scenario.window, self._items
        if self._round:
            return self._round.popleft(), 0
        while items and (ending or self._goes_on()):
            if window > 1 and not self._scenario.one_sequence:
                items.rotate(-self._random.randrange(min(window, len(items))))
            item = items.popleft()
            if item.length is not None:
                self.lengths.append((item.key, item.length))
                continue
            if item.ends_run:
                return self._end_run(), work_done
            self.works.append(1 if item.piece is None else self._scenario.work_of(*item.piece[:2]))
            work_done += self.works[-1]
            if item.deadly or item.hanging:
                return Fatal(item.hanging), work_done
            if item.piece is not None:
                self._rows += 1
                take = self._scenario.take
                if take is not None and self._rows > take:
                    continue
            if item.piece is not None and self._buckets:
                self._collect(item, item.piece)
                if self._round:
                    return self._round.popleft(), work_done
                continue
            (self._skipped_positions if item.piece is None else self._produced).add(item)
            if self._produced.rows == self._scenario.batch_size:
                made, self._produced = self._produced, Made(self._epoch)
                made.carry(self._skipped_positions)
                return made, work_done
        return None, work_done

    def _goes_on(self) -> bool:
        """Tell whether the engine works on what it has while it waits for a lease."""
        scenario = self._scenario
        if not scenario.one_sequence or scenario.window == 1:
            return len(self._items) >= scenario.window
        # In order it may keep all that it has read, in a chunk that is not full, up to the end of a run.
        return any(item.ends_run for item in self._items)

    def _end_run(self) -> Made:
        """Give up what there is of a run."""
        made, self._produced = self._produced, Made(self._epoch)
        ended = Made(self._epoch, ends_run=True)
        (made if made.rows else ended).carry(self._skipped_positions)
        if made.rows:
            self._round.append(ended)
            return made
        ended.carry(made)
        return ended

    # --- rounds --------------------------------------------------------------------------------------------

    def _collect(self, item: ModelItem, piece: ModelPiece) -> None:
        """Put an output into its bucket, and make a batch or a round of a bucket that is full."""
        place = bucket_of(piece, len(self._buckets))
        self._buckets[place].append(item)
        rounds = self._scenario.coordinated
        if len(self._buckets[place]) < self._scenario.bucket_sizes[place] * (self._scenario.ranks if rounds else 1):
            return
        items, self._buckets[place] = self._buckets[place], []
        if rounds:
            self._round.extend(self._round_of(items))
        else:
            self._full.append(items)
            while len(self._full) > (self._scenario.ranks - 1 if self._ends_epoch else 0):
                rank = self._batches % self._scenario.ranks if self._ends_epoch else None
                self._round.append(self._batch_of(self._full.popleft(), rank))
                self._batches += 1
        if self._round:
            self._round[0].carry(self._skipped_positions)

    def _batch_of(self, items: Iterable[ModelItem], rank: int | None) -> Made:
        made = Made(self._epoch, rank=rank)
        for item in items:
            made.add(item)
        return made

    def _round_of(self, items: Sequence[ModelItem]) -> list[Made]:
        ranks = self._scenario.ranks
        batches = [Made(self._epoch, rank=rank, round=items[0].piece) for rank in range(ranks)]
        for made in batches:
            for place in of_rank(range(len(items)), made.rank or 0, ranks):
                made.add(items[place])
        return batches

    def tail(self) -> list[Made]:
        """Return batches of what is left in the buckets, and at last what no rank gets."""
        ranks, sizes = self._scenario.ranks, self._scenario.bucket_sizes
        if (tail := self._scenario.tail) is not None:
            left = [*self._full, *self._buckets]
            items = [item for part in left for item in part]
            sizes = [*map(len, self._full), *sizes]
            batches, used = tail_batches(list(map(len, left)), sizes, tail, ranks, self._batches)
            for_ranks = [(self._batches + number) % ranks if ranks > 1 else None for number in range(used)]
            for_ranks += [None] * (len(batches) - used)
            return [self._batch_of([items[n] for n in one], who) for one, who in zip(batches, for_ranks, strict=True)]
        items = [item for bucket in self._buckets for item in bucket]
        rounds = []
        if not self._scenario.drop_remainder:
            rounds = tail_rounds(list(map(len, self._buckets)), sizes, ranks)
        made = [one for elements in rounds for one in self._round_of([items[n] for n in elements])]
        return [*made, self._batch_of(items[sum(map(len, rounds)) :], None)]

    # --- reading -------------------------------------------------------------------------------------------

    def _read(self, lease: Lease) -> list[ModelItem]:
        split = self._scenario.sources[lease.branch][lease.split.index]
        items: list[ModelItem] = []
        for element in range(lease.spans[0][0] >> OUTPUT_BITS, split.readable):
            begin, end = element << OUTPUT_BITS, (element + 1) << OUTPUT_BITS
            missing = [(max(a, begin), min(b, end)) for a, b in lease.spans if a < end and b > begin]
            if missing:
                items += self._outputs(lease, element, split.outputs[element], missing)
        last = lease.spans[-1][1]
        if split.torn is not None and last > split.torn << OUTPUT_BITS:
            begin = split.torn << OUTPUT_BITS
            rest = [(max(a, begin), b) for a, b in lease.spans if b > begin]
            items.append(ModelItem(lease.key, rest, bad=self._left_out(lease, split.torn, "read")))
        elif last > len(split.outputs) << OUTPUT_BITS:
            items.append(ModelItem(lease.key, [], length=len(split.outputs)))
        if self._scenario.reads_ahead:
            self.lengths += [(item.key, item.length) for item in items if item.length is not None]
            items = [item for item in items if item.length is None]
        return items

    def _outputs(self, lease: Lease, element: int, outputs: int, missing: list[Span]) -> list[ModelItem]:
        """Return the outputs of an element that are missing; each has an even share of its positions."""
        if outputs == DEADLY:
            return [ModelItem(lease.key, missing, deadly=True)]
        if outputs == HANGING:
            return [ModelItem(lease.key, missing, hanging=origin_of(lease, element))]
        if outputs == BAD:
            return [ModelItem(lease.key, missing, bad=self._left_out(lease, element, "map"))]
        if outputs == 1 or not outputs:
            return [ModelItem(lease.key, missing, (lease.key, element, 0) if outputs else None)]
        items = []
        begin, width = element << OUTPUT_BITS, WIDTH // outputs
        for output in range(outputs):
            first = begin + output * width
            if mine := within(missing, first, first + width):
                items.append(ModelItem(lease.key, mine, (lease.key, element, output)))
        if rest := within(missing, begin + outputs * width, begin + WIDTH):
            items.append(ModelItem(lease.key, rest))
        return items

    @staticmethod
    def _left_out(lease: Lease, element: int, op: str) -> LeftOutElement:
        identity = (lease.epoch, lease.key, element, op)
        where, error = lease.split.where(element), "ValueError: as the scenario says"
        return LeftOutElement(identity, op, where, error, origin=origin_of(lease, element))


def within(spans: list[Span], start: int, stop: int) -> list[Span]:
    """Return the part of some intervals that lies in another one."""
    return [(max(a, start), min(b, stop)) for a, b in spans if a < stop and b > start]


def bucket_of(piece: ModelPiece, buckets: int) -> int:
    """Return which of some buckets an output belongs to."""
    (_, _, split), element, _ = piece
    return (7 * split + 3 * element) % buckets


def pieces_of(scenario: Scenario, key: LeaseKey) -> list[ModelPiece]:
    """Return all outputs of a split."""
    branch, _, index = key
    split = scenario.sources[branch][index]
    return [
        (key, element, output)
        for element, outputs in enumerate(split.outputs[: split.readable])
        for output in range(max(0, outputs))
    ]


def all_pieces(scenario: Scenario) -> list[ModelPiece]:
    """Return all outputs of an epoch, in the order of the sources."""
    return [piece for key in scenario.keys for piece in pieces_of(scenario, key)]


def unreadable(lease: Lease) -> LeftOutElement:
    """Return what is left out where nobody can open a split."""
    key = lease.epoch, lease.key
    return LeftOutElement((key, "unopened"), "read", lease.split.where(0), "it is not there", lease.split.elements or 1)
