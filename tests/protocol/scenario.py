"""What a simulated job is: its data, options, parties, links and faults, all as values."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from random import Random
from typing import Literal, TypeAlias

from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.options import OnError, Sharding, Visitation
from pecan_ray.plan.grouping import Tail
from pecan_ray.plan.splits import LeaseKey
from pecan_ray.sampling.random_keys import SplitOrder

BAD = -1
"""Stands for an element at which an operator fails."""
DEADLY = -2
"""Stands for an element that ends the process of whoever works on it;"""
HANGING = -3
"""for one that whoever works on it never comes to the end of."""
FATAL = (DEADLY, HANGING)

TIMEOUT_S = 40.0
"""A party that says nothing for longer is taken for lost;"""
HUNG_AFTER_S = 20.0
"""a worker that works on one element for longer, for one that hangs."""
CUT = 4
"""Rows are so many times as large as they have travelled: floats of bytes."""

FaultKind: TypeAlias = Literal[
    "kill worker",
    "kill node",
    "freeze worker",
    "hang worker",
    "slow worker",
    "break stream",
    "freeze trainer",
    "slow trainer",
    "kill trainer",
    "scale",
    "ask room",
    "fail",
    "change plan",
    "fail order",
    "kill controller",
    "freeze controller",
    "announce node",
    "announce worker",
]


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong, or changes, while a job runs."""

    at: float
    """Virtual seconds after the first trainer came."""
    kind: FaultKind
    target: int = 0
    """Which of the parties that there are then, modulo their number; for "scale": 100 * local + remote."""
    seconds: float = math.inf
    """How long a frozen party, or the work of one that hangs, stands still; for slow ones: how many times slower it is
    from then on; for announced ends: in how many seconds they come (of nodes: infinite, none does, and nobody says)."""


@dataclass(frozen=True)
class SplitModel:
    """A split as the source holds it."""

    outputs: tuple[int, ...]
    """What the operators make of each element: so many outputs, 0 where it is filtered, BAD, DEADLY or HANGING."""
    torn: int | None = None
    """Reading fails at this element."""

    @property
    def readable(self) -> int:
        """How many elements can be read."""
        return len(self.outputs) if self.torn is None else self.torn


@dataclass(frozen=True)
class Scenario:
    """One history: everything that decides how it goes."""

    seed: int = 0
    """Of whatever is drawn while it runs: delays, losses, speeds."""
    sources: tuple[tuple[SplitModel, ...], ...] = ((SplitModel((1,)),),)
    lengths_known: bool = False
    """Sources tell how many elements their splits hold, before these are read."""
    estimated: bool = False
    """They only estimate it, and are wrong by up to ten times."""
    whole: float = 0.0
    """This share of them is read by one worker, from the beginning to the end."""
    ranks: int = 1
    epochs: int | None = 1
    num_passes: int = 1
    sharding: Sharding = "dynamic"
    visitation: Visitation = "exactly_once"
    batch_size: int = 1
    drop_remainder: bool = False
    shuffled: bool = False
    serial: bool = False
    in_order: bool = False
    numbered: bool = False
    """It is known which row of an epoch an element becomes: runs of rows are put in order."""
    joined: bool = False
    """It is not: runs are any elements, and what becomes of them is joined to batches by the trainer."""
    wrong_by: int = 0
    """Every third split tells so many elements more than it holds, but for one that would tell none."""
    alone: bool = False
    """One worker at a time keeps the order by itself, where several workers would join their rows."""
    promised: bool = False
    """This order is never given up."""
    buckets: int = 0
    """Each batch is of one of so many buckets, and made in rounds, one for each rank; 0: of any elements."""
    tail: Tail | None = None
    """Not None: there are no rounds, and this becomes of what fills no batch of its bucket."""
    take: int | None = None
    """A whole-sequence plan yields so many elements only."""
    page: int = 100
    """Splits that the listing finds at a time,"""
    page_s: float = 0.01
    """and how long that takes."""
    ranks_on_host: int = 4
    """Trainers on a node, at most."""
    local: int = 1
    remote: int = 0
    auto: bool = False
    """AutoPlacement decides how many workers there are."""
    cpus: int = 4
    """Of each node."""
    rivals: int = 0
    """Other jobs that bid for workers on the same nodes."""
    placing_s: float = 0.0
    """How long a worker waits for its place."""
    prefetch_bytes: int = 1 << 20
    row_bytes: int = 1000
    outbox: int = 2
    """Unsent batches that a worker has memory for."""
    reads_ahead: bool = True
    """An engine finds the end of a split before it is done with its outputs; else behind them, as tf.data does."""
    window: int = 1
    """Elements that an engine has in progress; they are finished in any order.  In one sequence several mean that it
    keeps all until it has no more leases."""
    apart: bool = False
    """At the end of an assignment a worker tells apart which positions yield nothing, and which fill no batch."""
    ends_runs: bool = False
    """An engine gives up what fills no batch at the end of a run of joined rows, and goes on with the next one."""
    whole_batches: bool = False
    """A run of joined rows has a batch of elements at least, as for an engine that makes a graph for each."""
    threads: int = 1
    """Of an engine, which goes on with other elements while one is slow; more than one where nothing is lost."""
    streams: int = 1
    """So many splits a worker reads at a time, and mixes the elements of."""
    local_splits: float | None = None
    """This share of the splits that come next is at hand for workers; None: they do not look."""
    unseen: float = 0.0
    """Share of the splits that remote workers cannot open."""
    element_s: float = 0.01
    slow: tuple[float, int] = (0.0, 1)
    """This share of the elements takes so many times as long."""
    steps_s: tuple[float, ...] = (0.01,)
    """Seconds of a training step of each rank (of number rank modulo their number)."""
    delay_s: float = 0.005
    """Mean delay of a message."""
    lost: float = 0.0
    """Share of control messages that are lost,"""
    doubled: float = 0.0
    """and of those that come twice."""
    late_s: float = 0.0
    """Ranks come within so many seconds of each other;"""
    absent: bool = False
    """the last one never."""
    order_s: float | None = None
    """How long the order of operators is being looked for."""
    error_budget: float = 1.0
    on_error: OnError = "skip"
    processes_unknown: bool = False
    """Nobody can tell whether a trainer's process exists that says nothing."""
    names_element: bool = True
    """A worker that hangs tells at which element."""
    leaks_after: int | None = None
    """A worker's process dies of the element behind so many, whichever it is."""
    stop_after: int | None = None
    """The training loops leave after so many batches."""
    left: float = 0.0
    """Share of the epochs that training loops leave before their ends,"""
    left_apart: bool = False
    """and whether each rank does so by itself."""
    faults: tuple[Fault, ...] = field(default=())

    @property
    def shape(self) -> LedgerShape:
        """What the ledger needs to know."""
        return LedgerShape(
            branches=len(self.sources),
            epochs=self.epochs,
            num_passes=self.num_passes,
            sharding=self.sharding,
            visitation=self.visitation,
            world_size=self.ranks,
            batch_size=self.batch_size,
            drop_remainder=self.drop_remainder,
            split_order=(SplitOrder(self.seed),) * len(self.sources) if self.shuffled else (),
            serial=self.serial,
            in_order=self.in_order,
            coordinated=self.coordinated,
            grouped=self.tail is not None,
            in_row_order=self.numbered,
            joined=self.joined,
            one_row_each=self.one_row_each,
            whole_batches=self.whole_batches,
            order_required=self.promised,
            in_turn=self.alone or self.in_order,
            seeks=True,
        )

    def work_of(self, key: LeaseKey, element: int) -> int:
        """How many times as long as most elements one takes, in each epoch."""
        share, times = self.slow
        return times if share and Random(f"slow {self.seed} {key} {element}").random() < share else 1

    def told_elements(self, branch: int, index: int) -> int | None:
        """How many elements a split tells that it holds, if it tells."""
        if not self.lengths_known:
            return None
        held = len(self.sources[branch][index].outputs)
        return max(1, held + self.wrong_by) if held and index % 3 == 0 else held

    def about(self, branch: int, index: int) -> int | None:
        """How many elements a split is estimated to hold, if it is."""
        if not self.estimated:
            return None
        wrong_by = Random(f"about {self.seed} {branch} {index}").choice((0.1, 0.5, 1.0, 2.0, 10.0))
        return max(1, round(wrong_by * len(self.sources[branch][index].outputs)))

    def is_whole(self, branch: int, index: int) -> bool:
        """Tell whether a split is read by one worker, from its beginning to its end."""
        return Random(f"whole {self.seed} {branch} {index}").random() < self.whole

    @property
    def may_divide_splits(self) -> bool:
        """Whether several workers may be given parts of one split."""
        return self.lengths_known or self.estimated

    @property
    def splits(self) -> list[SplitModel]:
        """All splits of all sources."""
        return [split for source in self.sources for split in source]

    @property
    def within_budget(self) -> bool:
        """Whether the budget allows what is bad of all that may have been read at any time: no workers are blamed."""
        kinds = {kind for split in self.splits for kind in split.outputs}
        if not kinds <= {1, BAD} or self.torn or self.unseen or self.take is not None:
            return False
        counts = [itertools.accumulate(kind == BAD for kind in split.outputs) for split in self.splits]
        return all(bad <= self.error_budget * read for some in counts for read, bad in enumerate(some, 1))

    @property
    def keys(self) -> list[LeaseKey]:
        """All splits of an epoch, in the order of the sources."""
        return [
            (branch, pass_index, index)
            for branch, splits in enumerate(self.sources)
            for pass_index in range(self.num_passes)
            for index in range(len(splits))
        ]

    @property
    def counted(self) -> bool:
        """Whether each element becomes one output, if whoever works on it lives."""
        return all(split.torn is None and set(split.outputs) <= {1, *FATAL} for split in self.sources[0])

    @property
    def torn(self) -> bool:
        """Whether reading fails in some split."""
        return any(split.torn is not None for split in self.splits)

    @property
    def one_row_each(self) -> bool:
        """Whether rows are joined although each element becomes one."""
        return self.joined and self.counted and self.on_error == "raise"

    @property
    def coordinated(self) -> bool:
        """Whether batches are made in rounds: a rank that is alone has none."""
        return self.buckets > 0 and self.ranks > 1 and self.tail is None

    @property
    def bucket_sizes(self) -> list[int]:
        """Elements in a batch of each bucket, where there are any: fewer of longer ones."""
        buckets = self.buckets if self.coordinated or self.tail is not None else 0
        return [max(1, self.batch_size >> bucket) for bucket in range(buckets)]

    @property
    def one_sequence(self) -> bool:
        """Whether an engine finishes elements in order."""
        return self.serial or self.in_order or self.numbered or self.alone

    def leaves_after(self, rank: int, epoch: int) -> int | None:
        """Return after how many batches of an epoch a rank's loop leaves it; None: it does not."""
        random = Random(f"left {self.seed} {epoch} {rank if self.left_apart else 0}")
        return random.choice((1, 1, 2, 3, 5, 8)) if random.random() < self.left else None

    @property
    def plain(self) -> bool:
        """Whether each element becomes one output."""
        return not self.torn and all(set(split.outputs) <= {1} for split in self.splits)

    @property
    def hosts(self) -> int:
        """Number of nodes that trainers run on."""
        return -(-self.ranks // self.ranks_on_host)

    @property
    def lossy(self) -> bool:
        """Whether workers may be lost or go."""
        return self.auto or any(fault.kind not in ("slow worker", "slow trainer") for fault in self.faults)
