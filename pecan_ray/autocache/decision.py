"""What a job keeps at its `autocache` points: decided before its first epoch, from a sample and the store's speed.

The decision is `pecan_ray.cache.choose_execution`; this gives it its numbers, and writes its answer into the plan.

Decisions: docs/decisions/autocache.md.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial

from pecan_ray.autocache.store_speed import memory_speed, remote_speed, store_speed
from pecan_ray.cache.execution import ExecutionChoice, ExecutionMode, ExecutionPlace, choose_execution
from pecan_ray.cache.execution_profile import CachePoint, ExecutionProfile, OperatorCost, SourceCost
from pecan_ray.cache.store_model import StoreModel
from pecan_ray.cache_options import Cache
from pecan_ray.caching.store import EntryStore
from pecan_ray.engines.caching import MOST_ENTRY_BYTES
from pecan_ray.engines.entry_format import FORMAT_VERSION
from pecan_ray.engines.entry_objects import EntryObjects
from pecan_ray.errors import CacheError, MissingExtraError, PlanError, SourceError
from pecan_ray.options import EngineName
from pecan_ray.plan.fingerprint import describe_plan
from pecan_ray.plan.operators import Autocache, Batch, ElementOp, FixedSizeBatchingOp, Join, Plan, Prefetch
from pecan_ray.plan.point_at_end import is_at_end
from pecan_ray.plan.renaming import free_name
from pecan_ray.plan.shape import name_of_last
from pecan_ray.plan.splits import OUTPUT_BITS, Source
from pecan_ray.sources.listing import FirstSplits, list_splits
from pecan_ray.sources.tf_data import TfDataSource
from pecan_ray.storage.retry import unless_given_up

logger = logging.getLogger("pecan_ray")

UNKNOWN_ELEMENTS = 100_000
"""Of a source of which neither the length nor the bytes are known: all ways to run it take time in proportion."""
ELEMENTS_OF_A_SPLIT = 64
"""Where splits do not say how many they hold.  Chosen: it decides only how many entries there are, which costs little
beside their bytes."""
NAME = "name "
"""How notes begin that say, for people, what entries of a kind are of."""


# Both: docs/decisions/autocache.md#232-a-point-behind-a-graph.
SPLIT_GRAPH_S = 0.14
"""CPU seconds that the graph of a split takes which is recorded behind functions of TensorFlow."""
GRAPH_ELEMENT_S = 4e-4
"""CPU seconds that each element takes to leave such a graph."""

CACHED: tuple[ExecutionMode, ...] = ("source", "point", "full")
TOOK = "took "
"""How notes begin that say what an element took in an epoch, by plan, CPUs, mode and point."""


@dataclass(frozen=True)
class EpochEstimate:
    """What a decision says that an epoch after the first takes; what it took corrects it for later jobs."""

    seconds: float
    elements: float
    """Of an epoch."""
    note: str
    cache: Cache

    def correct(self, seconds: float) -> str:
        """Write down what an epoch took, and say it."""
        try:
            with EntryStore(self.cache.folder, max_bytes=self.cache.max_bytes) as store:
                store.note(self.note, json.dumps(seconds / self.elements))
        except CacheError as error:
            return f"autocache: an epoch took {seconds:.3g} s, which is not written down, since {error.message}"
        return (
            f"autocache: an epoch took {seconds:.3g} s, where {self.seconds:.3g} s were promised: later jobs go by "
            "what it took"
        )


@dataclass(frozen=True)
class Kept:
    """A plan with the points at which it keeps something, and why."""

    plan: Plan
    choices: tuple[ExecutionChoice, ...] = ()
    notes: tuple[str, ...] = ()
    """The reason of each choice, and what to know about it, in words."""
    epoch_estimate: EpochEstimate | None = None
    """None: nothing was decided, or of several inputs one by one."""
    frozen: tuple[str, ...] = ()
    """Those of `notes` by which random results are the same in every epoch."""


def has_points(plan: Plan) -> bool:
    """Tell whether there is any point at which something may be kept."""
    return any(isinstance(op, Autocache) for op in plan.all_ops())


def with_kept_points(
    plan: Plan,
    costs: Callable[[Plan], SampledCosts | None],
    *,
    name: str,
    engine: EngineName,
    seed: int,
    cache: Cache,
    cpus: float,
    workers: int = 1,
) -> Kept:
    """Return a plan with what it is to keep.

    `costs` gives what a sample shows of a plan, or of an input of a join, and is asked where it is not known.
    `workers`: processes that have the CPUs, all together.
    What cannot be decided is computed, as if there were no point, and said.
    """
    if not has_points(plan):
        return Kept(plan)
    try:
        with EntryStore(cache.folder, max_bytes=cache.max_bytes) as store:
            return _Decision(plan, name, costs, store, engine, seed, cache, cpus, workers).decide(plan)
    # A cache that cannot be used is no reason to end a job.
    except (CacheError, PlanError) as error:
        return Kept(plan, notes=(f"autocache: everything is computed, since {error.message}",))


@dataclass(frozen=True)
class _Decision:
    """All that the decision about one plan needs."""

    whole: Plan
    name: str
    costs: Callable[[Plan], SampledCosts | None]
    store: EntryStore
    engine: EngineName
    seed: int
    cache: Cache
    cpus: float
    workers: int

    def decide(self, plan: Plan) -> Kept:
        """Return a plan, or an input of a join, with what it is to keep."""
        head = plan.head
        # Each input has a source, a length and points of its own.
        if isinstance(head, Join):
            return self._decide_join(plan, head)
        if not has_points(plan):
            return Kept(plan)
        if isinstance(head, TfDataSource):
            return Kept(plan, notes=("autocache: what a user's dataset gives is not kept: use its cache()",))
        profile = self._profile(plan, head)
        if profile is None:
            return Kept(plan, notes=("autocache: everything is computed, since the sample did not show what it takes",))
        speed = store_speed(self.store)
        given = profile.ops[-1].nbytes if profile.ops else profile.source.nbytes
        # What is kept has to be put into batches all the same, which bounds what keeping can gain.
        profile = replace(profile, delivery=speed.delivery_cost(given, _rows(self.whole)))
        notes = self._notes(plan)
        # What an epoch really took counts for more than the model; per element, because the next job may have
        # more of them.
        took = {
            place: float(each) * profile.elements
            for place, note in notes.items()
            if (each := self.store.read_note(note))
        }
        memory = memory_speed(self.cache)
        remote, trouble = self._remote_speed()
        choose = partial(
            choose_execution,
            store_model=speed.reading,
            max_bytes=self.cache.max_bytes,
            measured=took,
            memory=memory,
            remote=remote,
            most_entry_bytes=MOST_ENTRY_BYTES,
        )
        choice, unkept = choose(profile), self._unkept_points(plan)
        if choice.point in self._points_behind_graph(plan):
            others = choose(replace(profile, points=self._points_at_source(plan)))
            recording_s = (SPLIT_GRAPH_S * profile.splits + GRAPH_ELEMENT_S * profile.elements) / self.cpus
            if recording_s > others.seconds - choice.seconds:
                why = f"{choice.point}: recording takes {recording_s:.3g} s more, and an epoch would save less"
                choice, unkept = others, (*unkept, why)
        messages = tuple(f"autocache: {text}" for text in (choice.reason, *choice.warnings, *trouble, *unkept))
        epoch_estimate = EpochEstimate(choice.seconds, profile.elements, notes[choice.mode, choice.point], self.cache)
        frozen = tuple(f"autocache: {text}" for text in choice.frozen)
        return Kept(self._with_choice(plan, choice), (choice,), messages, epoch_estimate, frozen=frozen)

    @property
    def _source_point(self) -> str:
        """The name of a point behind a source that the user has not written."""
        return free_name("autocache_source", {op.name for op in self.whole.all_ops()})

    def _points(self, plan: Plan) -> tuple[CachePoint, ...]:
        """Return the points at which the engine can keep something."""
        # Decision 43: between two functions nothing leaves a graph of TensorFlow.
        marked = _points(plan)
        if self.engine == "python":
            return marked
        behind = self._points_behind_graph(plan)
        kept = tuple(point for point in marked if point.behind is None or point.name in behind)
        return kept or self._points_at_source(plan)

    def _points_at_source(self, plan: Plan) -> tuple[CachePoint, ...]:
        """Return the points at which what the source gives can be kept; there always is one."""
        return tuple(point for point in _points(plan) if point.behind is None) or (CachePoint(self._source_point),)

    def _points_behind_graph(self, plan: Plan) -> set[str]:
        """Return the names of points of which each split takes a graph of TensorFlow of its own."""
        if self.engine == "python" or plan is not self.whole:
            return set()
        return {op.name for op in plan.ops if is_at_end(plan, op)}

    def _unkept_points(self, plan: Plan) -> tuple[str, ...]:
        """Say which points keep nothing, whatever that would save."""
        names = [point.name for point in _points(plan) if point not in self._points(plan)]
        what = f"the {self.engine} engine keeps what the source gives, or what the last function on elements gives"
        return (f"{', '.join(names)}: {what}",) if names else ()

    def _remote_speed(self) -> tuple[StoreModel | None, tuple[str, ...]]:
        """Return how fast the store is read that many machines share; where it cannot be used, None and why."""
        url = self.cache.remote_url
        if url is None:
            return None, ()
        try:
            return remote_speed(self.store, EntryObjects(url)), ()
        except (CacheError, SourceError, MissingExtraError) as error:
            return None, (f"nothing is kept in the remote store: {error.message}",)

    def _notes(self, plan: Plan) -> dict[ExecutionPlace, str]:
        """Return under which note lies what an epoch took, by how it was run."""
        key = prefix_key(plan, self.engine, self.seed)
        places: list[ExecutionPlace] = [("compute", None), ("source", None)]
        behind_source = () if self.engine == "python" else self._points_at_source(plan)
        for point in {*self._points(plan), *behind_source}:
            places += [(mode, point.name) for mode in CACHED]
        return {(mode, name): f"{TOOK}{key} {self.cpus:g} {mode} {name or ''}" for mode, name in places}

    def _with_choice(self, plan: Plan, choice: ExecutionChoice) -> Plan:
        if choice.mode == "compute":
            return plan
        ops = list(plan.ops)
        place = next((number for number, op in enumerate(ops) if op.name == choice.point), None)
        if place is None:  # what the source gives, where nobody has marked it
            place = 0
            ops.insert(place, Autocache(name=self._source_point))
        point = ops[place]
        assert isinstance(point, Autocache)
        # The point's own name and refresh are no part of what is computed: renaming it must not empty the
        # cache.
        before = Plan(head=plan.head, ops=(*ops[:place], replace(point, name="autocache", refresh=0.0)))
        key = prefix_key(before, self.engine, self.seed)
        name = f"{self.name}: {point.name} behind {name_of_last(before.ops)}"
        self.store.note(f"{NAME}{key}", name)
        if choice.remote:
            self._write_remote_name(key, name)
        ops[place] = replace(point, key=key, remote=choice.remote)
        return replace(plan, ops=tuple(ops))

    def _write_remote_name(self, key: str, name: str) -> None:
        """Write down in the remote store, for people, what entries are of; the first job of a machine does so."""
        note = f"{NAME}{key} in {self.cache.remote_url}"
        if self.cache.remote_url is None or self.store.read_note(note) is not None:
            return
        objects = EntryObjects(self.cache.remote_url)
        try:
            # An event that is never set: only the patience bounds this.
            with unless_given_up(threading.Event(), patience_s=objects.wait_s):
                objects.name(key, name)
        except SourceError as error:
            logger.info("autocache: %s", error.message)
        else:
            self.store.note(note, name)

    def _costs(self, plan: Plan) -> SampledCosts | None:
        """Return what the store has noted of a plan's costs, or what a sample shows, which it then notes."""
        note = f"profile {prefix_key(plan, self.engine, self.seed)}"
        written = self.store.read_note(note)
        costs = None if written is None else _costs_from_json(written)
        if costs is None:
            costs = self.costs(plan)
            if costs is not None:
                self.store.note(note, json.dumps(asdict(costs)))
        return costs

    def _decide_join(self, plan: Plan, head: Join) -> Kept:
        inputs = [self.decide(branch) for branch in head.inputs]
        joined = replace(head, inputs=tuple(one.plan for one in inputs))
        choices = tuple(choice for one in inputs for choice in one.choices)
        message = tuple(text for one in inputs for text in one.notes)
        frozen = tuple(text for one in inputs for text in one.frozen)
        # Without an estimate: an epoch's seconds cannot be divided among inputs that run side by side.
        return Kept(replace(plan, head=joined), choices, message, frozen=frozen)

    def _profile(self, plan: Plan, source: Source) -> ExecutionProfile | None:
        """Return what is known of a plan's costs: written down by an earlier job, or sampled now."""
        costs = self._costs(plan)
        if costs is None:
            return None
        listing = list_splits(source)
        workers = max(1, min(self.workers, int(self.cpus)))  # more of them take turns
        told = source.num_elements() or listing.elements
        likely = told or elements_by_bytes(listing, costs.source.nbytes)
        elements = likely or UNKNOWN_ELEMENTS
        splits = _number_of_splits(listing, elements)
        alike = (elements / splits,) if likely and listing.complete else ()
        rows = _rows(self.whole)
        return ExecutionProfile(
            source=costs.source,
            ops=costs.ops,
            points=self._points(plan),
            elements=elements,
            splits=splits,
            workers=workers,
            threads=max(1, int(self.cpus / workers)),
            batches=elements * math.prod(op.elements for op in costs.ops) / rows if rows else 0.0,
            rows=_in_rows(plan, self.whole),
            split_elements=elements_of_splits(listing, costs.source.nbytes) or alike,
        )


@dataclass(frozen=True)
class SampledCosts:
    """What reading an element and each operator cost, as a sample has shown it."""

    source: SourceCost
    ops: tuple[OperatorCost, ...]


def _rows(plan: Plan) -> int:
    """Return the elements of a batch, in the last operator that makes batches; 0 where none says it."""
    sizes = [op.size for op in plan.ops if isinstance(op, FixedSizeBatchingOp)]
    return sizes[-1] if sizes else 0


def _in_rows(plan: Plan, whole: Plan) -> bool:
    """Tell whether what the last operator on elements gives goes right into batches."""
    last = max((number for number, op in enumerate(plan.ops) if isinstance(op, ElementOp)), default=-1)
    behind = [op for op in plan.ops[last + 1 :] if not isinstance(op, (Autocache, Prefetch))]
    # By exact type: padding and grouping look at single elements.
    return plan is whole and [type(op) for op in behind] == [Batch]


def _costs_from_json(text: str) -> SampledCosts | None:
    try:
        written = json.loads(text)
        return SampledCosts(SourceCost(**written["source"]), tuple(OperatorCost(**op) for op in written["ops"]))
    except (KeyError, TypeError, ValueError):
        return None  # another version has written it


def _number_of_splits(listing: FirstSplits, elements: float) -> int:
    """Return how many splits a source has, by those that are listed where the listing stops before its end."""
    # A listing is cut off after a while, so that a job with a million files can begin.
    if listing.complete and listing.splits:
        return len(listing.splits)
    known = [split.elements for split in listing.splits if split.elements]
    each = sum(known) / len(known) if known else ELEMENTS_OF_A_SPLIT
    return max(1, round(elements / each))


def elements_by_bytes(listing: FirstSplits, element_bytes: float) -> float | None:
    """Return how many elements files may hold that do not say it, by their bytes; None: these are not known either.

    Of packed files it is too few.
    """
    sizes = [split.stop - split.start for split in listing.splits if split.path and split.stop is not None]
    if not listing.complete or len(sizes) < len(listing.splits) or not element_bytes:
        return None
    return sum(sizes) / element_bytes or None


def elements_of_splits(listing: FirstSplits, element_bytes: float) -> tuple[float, ...]:
    """Return how many elements each split holds that is listed: as it says, or else by its bytes; empty: not known."""
    found = []
    for split in listing.splits:
        if split.elements is not None:
            found.append(float(split.elements))
        elif split.path and split.stop is not None and element_bytes:
            found.append((split.stop - split.start) / element_bytes)
        else:
            return ()
    return tuple(found)


def _points(plan: Plan) -> tuple[CachePoint, ...]:
    found, behind = [], None
    for op in plan.ops:
        if isinstance(op, ElementOp):
            behind = op.name
        elif isinstance(op, Autocache):
            found.append(CachePoint(op.name, behind, op.refresh))
    return tuple(found)


def prefix_key(plan: Plan, engine: EngineName, seed: int) -> str:
    """Return what stands for all that a plan computes, beside its splits; raises PlanError where nothing can.

    That is so where a function holds something without a stable text: two different ones would look alike.
    """
    # All that changes an entry's bytes or positions; the splits are in the entry's own key (`entry_key`).
    text = json.dumps([FORMAT_VERSION, OUTPUT_BITS, engine, seed, describe_plan(plan, strict=True)])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def name_of(store: EntryStore, key: str) -> str:
    """Say what entries of a kind are of: the pipeline and the point that they were kept for first."""
    return store.read_note(f"{NAME}{key}") or "a pipeline"
