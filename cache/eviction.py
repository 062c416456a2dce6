"""Which entries of a store go, so that the rest fits: least recently used, or the least benefit per byte."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pecan_ray.cache.checked import checked_amount, checked_count
from pecan_ray.errors import PlanError

EvictionPolicy: TypeAlias = Literal["lru", "fifo", "benefit", "resident"]


# docs/decisions/shared-cache-and-pipe.md#52-blocks-of-buckets: one in twenty, and a block that was unused for
# ten minutes goes at once.
LET_IN = 0.05
"""The share of what comes that is let in where others must go for it that are in use."""
UNUSED_S = 600.0
"""What nobody has used for so long is in use no more."""


@dataclass(frozen=True)
class StoredEntry:
    """An entry that is kept, or about to be."""

    key: str
    nbytes: int
    last_used: float = 0.0
    """On any clock or counter that does not go back."""
    seconds_saved: float = 0.0
    """By reading it instead of computing it, times how often that is expected."""
    in_use: bool = False
    """Somebody reads it: it cannot go now."""

    def __post_init__(self) -> None:
        checked_count(f"entry {self.key!r}: nbytes", self.nbytes, least=0)
        checked_amount(f"entry {self.key!r}: seconds_saved", self.seconds_saved)
        if self.last_used != self.last_used:
            raise PlanError(f"entry {self.key!r}: last_used must be a number, but got {self.last_used!r}.")

    @property
    def benefit(self) -> float:
        """Seconds saved per byte."""
        return self.seconds_saved / max(self.nbytes, 1)


WORTH: dict[EvictionPolicy, Callable[[StoredEntry], tuple[float, float]]] = {
    "lru": lambda entry: (entry.last_used, entry.benefit),
    # With which reads do not count as uses: jobs that take first what is here have each read it soon after it came.
    "fifo": lambda entry: (entry.last_used, entry.benefit),
    # The same ones go, but few are let in in their place: `should_store`.
    "resident": lambda entry: (entry.last_used, entry.benefit),
    # Of equal benefit the newest goes: epochs go round, so it is the one that is wanted last, and who always let the
    # oldest go would find nothing in a store that is smaller than an epoch.
    "benefit": lambda entry: (entry.benefit, -entry.last_used),
}
"""By policy, what an entry is worth: the least goes first."""


def should_store(unused_s: float, share: float, chance: float) -> bool:
    """Tell whether a full store lets something in for which others must go, by its policy "resident".

    Jobs that go over their data in random orders use everything equally often: what is there is worth as much as what
    comes, and a store that takes in all that comes keeps little until it is used again.  So what is in use stays, but
    for one time in twenty; what was not used for long makes room at once.

    `unused_s`: for how long the part of the store that goes was not used; `share`: how much of such a part comes;
    `chance`: a random number in [0, 1).
    """
    return unused_s > UNUSED_S or chance < LET_IN * share


def entries_to_evict(
    entries: Iterable[StoredEntry], max_bytes: int, policy: EvictionPolicy = "benefit"
) -> tuple[str, ...]:
    """Return the keys of the entries that go, the least worth first, so that the rest takes at most `max_bytes`.

    Nothing goes that could stay beside the others.  A new entry is listed with the others, and may be the one that
    goes.  Entries in use stay, also where they alone take more.  By benefit it is the greedy choice of Quiver §5.3.
    """
    room = checked_count("entries_to_evict(max_bytes=...)", max_bytes, least=0)
    if policy not in WORTH:
        raise PlanError(f"entries_to_evict(policy=...) must be one of {', '.join(WORTH)}, but got {policy!r}.")
    listed = sorted(entries, key=WORTH[policy])
    if len({entry.key for entry in listed}) < len(listed):
        raise PlanError("entries_to_evict: two entries have the same key.")
    excess = sum(entry.nbytes for entry in listed) - room
    gone: dict[str, StoredEntry] = {}
    for entry in listed:
        if excess <= 0:
            break
        if not entry.in_use:
            gone[entry.key] = entry
            excess -= entry.nbytes
    # The last ones may have freed more than was needed: what fits again stays, the most worth first.
    for entry in reversed(list(gone.values())):
        if excess + entry.nbytes <= 0:
            del gone[entry.key]
            excess += entry.nbytes
    return tuple(gone)


def entries_over_quota(
    entries: Mapping[str, Iterable[StoredEntry]],
    max_bytes: int,
    cache_limits: Mapping[str, int],
    policy: EvictionPolicy = "benefit",
) -> tuple[str, ...]:
    """Return the keys of the entries that go so that no kind takes more than its room, and all at most `max_bytes`.

    `entries`: by kind.  Kinds without a room have what others leave.
    """
    gone: list[str] = []
    left: list[StoredEntry] = []
    others: list[StoredEntry] = []
    for kind, of_kind in entries.items():
        stored = list(of_kind)
        over = set(entries_to_evict(stored, cache_limits[kind], policy) if kind in cache_limits else ())
        gone += sorted(over)
        (left if kind in cache_limits else others).extend(one for one in stored if one.key not in over)
    # Decision 60: kinds without a room have what is left, and go first where there is too little.
    taken = sum(one.nbytes for one in left)
    over = set(entries_to_evict(others, max(0, max_bytes - taken), policy))
    left += [one for one in others if one.key not in over]
    return (*gone, *sorted(over), *entries_to_evict(left, max_bytes, policy))
