"""What to keep: nothing, the source's elements, or those of one marked point (Cachew §4.4, with any number of points).

Cachew projects, for one worker, M g(bytes) + (N t_last - M t_point) seconds for a point that M elements pass, against
N t_last where nothing is kept.  These two parts, reading R and computing C, are used here for every option, but they
are not simply added: reading needs a CPU for a part of its time only (1 - w, `waiting`), and meanwhile others compute:

    seconds = pause + max( R / (workers * readers),  shared((1 - w) R + C),  bytes / most_bytes_per_s )

C has the making of batches and their handing over in it, which bounds what keeping can gain, and `pause` is what lies
between two epochs.  `shared` divides the work by workers and threads, as far as threads can work at once: of L seconds
(`locked_seconds`) each takes its turn, so that a worker's threads wait for each other as customers of one till do, and
never come below L.  With one thread that never waits this is Cachew's sum; where all of reading is waiting it is the
larger of both, as Cachew's Figure 8 shows it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from pecan_ray.cache.checked import checked_amount, checked_count
from pecan_ray.cache.execution_profile import ExecutionProfile
from pecan_ray.cache.store_model import StoreModel

ExecutionMode: TypeAlias = Literal["compute", "source", "point", "full"]
"""Compute everything; keep what the source gives; what a point in the middle gives; what the last operator gives."""

ExecutionPlace: TypeAlias = tuple[ExecutionMode, str | None]
"""A mode and the point of an option."""

# docs/decisions/autocache.md#34-windows-and-a-stores-model: a cache must save 2 % of an epoch.
LEAST_GAIN = 0.02
"""What saves a smaller share of an epoch is not worth its first epoch and its room."""


@dataclass(frozen=True)
class ExecutionOption:
    """One way to run the epochs after the first."""

    mode: ExecutionMode
    point: str | None
    """Name of the autocache point; None: nothing is kept, or the source's elements without a point there."""
    seconds: float
    """Of an epoch, with all workers."""
    read_seconds: float
    """Of one reader: the part of reading, from the store or the source."""
    compute_seconds: float
    """Of one thread: the part of the operators, and of making batches."""
    nbytes: float
    """What it would keep in all."""
    share: float = 1.0
    """The share of these bytes that there is room for; the rest is computed in each epoch."""
    remote: bool = False
    """Whether what has no room here is read from a store that many machines share, and kept there."""
    measured: bool = False
    """Whether an epoch has been run this way, and `seconds` is what it took."""
    too_large: str = ""
    """Why some of it, or all, can never be kept: splits of which an entry would be too large; empty: all can be."""

    def __str__(self) -> str:
        """Say what is kept, where."""
        if self.mode == "compute":
            return "compute"
        name = {"source": "source cache", "point": "cache", "full": "full cache"}[self.mode]
        return name if self.point is None else f"{name} at {self.point!r}"


@dataclass(frozen=True)
class ExecutionChoice:
    """What to keep, and why."""

    mode: ExecutionMode
    point: str | None
    seconds: float
    """Of an epoch after the first."""
    reason: str
    options: tuple[ExecutionOption, ...]
    """Every way that there was: compute first, then along the pipeline."""
    remote: bool = False
    """Whether it is to be kept in the store that many machines share as well: it is read there sooner than computed."""
    warnings: tuple[str, ...] = ()
    """A sentence for each point that would keep random results, whether it was chosen or not, and for each with splits
    that are too large to be kept."""
    frozen: tuple[str, ...] = ()
    """Those of the warnings that say what this very choice keeps random results of."""


def choose_execution(
    profile: ExecutionProfile,
    store_model: StoreModel,
    *,
    max_bytes: int | None = None,
    measured: Mapping[ExecutionPlace, float] | None = None,
    memory: tuple[StoreModel, int] | None = None,
    remote: StoreModel | None = None,
    most_entry_bytes: float = math.inf,
) -> ExecutionChoice:
    """Return the way to run a pipeline that makes an epoch shortest.

    Where a point is marked, the elements of the source may be kept too: they are the same in every epoch.  A cache must
    save 2 % of an epoch; of caches that differ by less the smallest is taken.  Where `max_bytes` holds a part of what a
    point gives, this part is read and the rest computed.  What filling costs is not counted: one epoch pays for it.
    `memory`: how fast a tier in memory is read, and its bytes: what fits is read from there.  `remote`: how fast a
    store is read that many machines share, where there is one: it has room for all, so what has none here is read from
    there, but for a point whose entries would take longer to come from there than to compute.  `measured`: by mode and
    point, what an epoch took that was run so; it counts for more than the model.  `most_entry_bytes`: a split that
    gives more is never kept, here or elsewhere, and computed in each epoch; what is so for all splits is not chosen.
    """
    room = math.inf if max_bytes is None else checked_count("choose_execution(max_bytes=...)", max_bytes)
    took = measured or {}
    options = tuple(
        _as_measured(option, took.get((option.mode, option.point)))
        for option in _options(profile, store_model, room, memory, remote, most_entry_bytes)
    )
    chosen, reason = _chosen(options)
    large = tuple(one.too_large for one in options if one.too_large and (one.point or chosen.mode == "compute"))
    random = _warnings(profile)
    frozen = tuple(text for name, text in random.items() if name == chosen.point)
    warnings = (*random.values(), *large)
    return ExecutionChoice(chosen.mode, chosen.point, chosen.seconds, reason, options, chosen.remote, warnings, frozen)


def _as_measured(option: ExecutionOption, seconds: float | None) -> ExecutionOption:
    """Return an option with what an epoch took that was run so, if one was and it is not left out for its entries."""
    # What was measured then was an epoch that kept nothing there.
    if seconds is None or (option.too_large and not option.share):
        return option
    return replace(option, seconds=checked_amount("measured seconds", seconds), measured=True)


def _chosen(options: Sequence[ExecutionOption]) -> tuple[ExecutionOption, str]:
    """Return the option that is taken, and why: the smallest cache of those that save most, if it saves enough."""
    compute, *caches = options
    if not caches:
        return compute, f"compute: {_time(compute.seconds)} an epoch; no autocache point is marked."
    fastest = min(option.seconds for option in caches)
    near = [option for option in caches if option.seconds <= fastest * (1 + LEAST_GAIN)]
    # The smallest of those that differ by less than the model can tell apart.
    best = min(near, key=lambda option: option.nbytes)
    chosen = best if best.seconds < compute.seconds * (1 - LEAST_GAIN) else compute
    return chosen, _reason(chosen, options)


def _options(
    profile: ExecutionProfile,
    store: StoreModel,
    room: float,
    memory: tuple[StoreModel, int] | None,
    remote: StoreModel | None,
    most_entry_bytes: float,
) -> tuple[ExecutionOption, ...]:
    source = profile.source
    reading, computing = source.seconds * profile.elements, _computing(profile, 0)
    bound = profile.bytes_at(0) / source.most_bytes_per_s
    compute = ExecutionOption(
        "compute", None, _epoch(profile, 0, reading, source.waiting, bound), reading, computing, 0.0
    )
    places: list[tuple[str | None, int, float]] = [
        (point.name, profile.place_of(point), point.refresh) for point in profile.points
    ]
    # A mark somewhere is the user's permission to keep, and the source's elements are the same in every
    # epoch.
    if places and all(place > 0 for _, place, _ in places):
        places.append((None, 0, 0.0))
    options = [compute]
    for name, place, refresh in sorted(places, key=lambda one: one[1]):
        nbytes = profile.bytes_at(place)
        elements = profile.elements_at(place)
        reading = store.read_seconds(nbytes, elements, profile.splits)
        if memory is not None:
            model, most = memory
            there = min(1.0, most / max(nbytes, 1))
            reading = (1 - there) * reading + there * model.read_seconds(nbytes, elements, profile.splits)
        computing = _computing(profile, place)
        seconds = _epoch(profile, place, reading, store.waiting, nbytes / store.most_bytes_per_s)
        can_be, too_large = _in_entries(profile, place, name, most_entry_bytes)
        share = min(can_be, room / nbytes) if nbytes else 1.0
        far = math.inf if remote is None else _from_store(profile, place, remote)
        # Decision 49: a worker at a split cannot know that the store is slower than computing.
        used = far < compute.seconds * (1 - LEAST_GAIN) and can_be > 0
        elsewhere = far if used else compute.seconds
        seconds = share * seconds + (can_be - share) * elsewhere + (1 - can_be) * compute.seconds
        seconds = (1 - refresh) * seconds + refresh * compute.seconds
        mode = _mode(place, len(profile.ops))
        option = ExecutionOption(mode, name, seconds, reading, computing, nbytes, share, used, too_large=too_large)
        options.append(option)
    return tuple(options)


def _in_entries(profile: ExecutionProfile, place: int, name: str | None, most: float) -> tuple[float, str]:
    """Return the share of a place's bytes whose entries are not too large, and of the others why they are not kept."""
    entries = profile.entry_bytes_at(place)
    small = sum(nbytes for nbytes in entries if nbytes <= most)
    if not entries or small == sum(entries):
        return 1.0, ""
    can_be = small / sum(entries)
    what = "what the source gives" if name is None else f"autocache point {name!r}"
    kept = f"only {can_be:.0%} of it can be kept" if can_be else "nothing of it can be kept"
    return can_be, (
        f"{what}: a split has up to {max(entries) / 2**20:,.0f} MiB there, and one with more than {most / 2**20:,.0f} "
        f"MiB is computed each time: {kept}; smaller splits of the source can be."
    )


def _from_store(profile: ExecutionProfile, place: int, store: StoreModel) -> float:
    """Return the seconds of an epoch for which all that a place gives is read from a store."""
    nbytes = profile.bytes_at(place)
    reading = store.read_seconds(nbytes, profile.elements_at(place), profile.splits)
    return _epoch(profile, place, reading, store.waiting, nbytes / store.most_bytes_per_s)


def _computing(profile: ExecutionProfile, place: int) -> float:
    """Return the thread-seconds of the operators behind a place, and of making batches."""
    return profile.seconds_from(place) + profile.delivery_seconds(place)


def _epoch(profile: ExecutionProfile, place: int, reading: float, waiting: float, bound: float) -> float:
    """Return the seconds of an epoch: reading beside computing, neither faster than the storage gives."""
    delivery = profile.delivery
    work = (1 - waiting) * reading + _computing(profile, place) + delivery.per_batch_s * profile.batches
    shared = shared_seconds(work, profile.locked_seconds(place), profile.threads) / profile.workers
    # Decision 34: a sum would take the full cache from 165 ms of computing on in Cachew's Figure 8, whose curves
    # cross at 430.
    return delivery.per_epoch_s + max(reading / (profile.workers * profile.readers), shared, bound)


def shared_seconds(work: float, locked: float, threads: int) -> float:
    """Return how long threads take for so many thread-seconds of work, of which `locked` can be spent by one at a time.

    That is a closed queue of as many customers as there are threads, one till, and as much time in between as is left
    of the work; by mean value analysis: who comes to the till meets there whom one customer less would leave there.
    """
    if work <= 0:
        return 0.0
    waiting, round_trip = 0.0, work
    for count in range(1, threads + 1):
        held = locked * (1 + waiting)
        round_trip = work - locked + held
        waiting = count * held / round_trip
    return round_trip / threads


def _mode(place: int, operators: int) -> ExecutionMode:
    if place == 0:
        return "source"
    return "full" if place == operators else "point"


def _reason(chosen: ExecutionOption, options: Sequence[ExecutionOption]) -> str:
    others = [f"{option} {_time(option.seconds)}" for option in options if option is not chosen]
    parts = (
        f"reading {_time(chosen.read_seconds)} for one reader, computing {_time(chosen.compute_seconds)} for one thread"
    )
    if chosen.measured:
        parts = f"as measured; {parts}"
    if chosen.mode != "compute":
        parts += (
            f", {chosen.nbytes / 1e6:,.1f} MB kept"
            if chosen.share == 1
            else (f", {chosen.share:.0%} of {chosen.nbytes / 1e6:,.1f} MB kept")
        )
        if chosen.remote:
            parts += f" here, and {'what can be' if chosen.too_large else 'all'} of it in the remote store"
    elif min(option.seconds for option in options) < chosen.seconds:
        parts += f"; less than {LEAST_GAIN:.0%} would be saved"
    return f"{chosen}: {_time(chosen.seconds)} an epoch ({parts}), against {', '.join(others)}."


def _warnings(profile: ExecutionProfile) -> dict[str, str]:
    """Return, by point, what to know of points behind random operators."""
    found = {}
    for point in profile.points:
        names = profile.random_before(profile.place_of(point))
        if names and not point.refresh:
            what = "operators " + ", ".join(map(repr, names)) if len(names) > 1 else f"operator {names[0]!r}"
            found[point.name] = (
                f"Warning: autocache point {point.name!r} stands behind the random {what}: what is kept there is the "
                "same in every epoch; move it before, or renew a share of it in each epoch: autocache(refresh=0.2)."
            )
    return found


def _time(seconds: float) -> str:
    if seconds >= 1 or seconds == 0:
        return f"{seconds:,.1f} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"
