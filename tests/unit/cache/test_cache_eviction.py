"""Which entries go: the rest fits, nothing goes for nothing, and the least worth goes first."""

from __future__ import annotations

from fractions import Fraction
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.cache import EvictionPolicy, StoredEntry, entries_to_evict
from pecan_ray.cache.eviction import entries_over_quota
from tests.long_form import examples


def entry(key: str, nbytes: int, used: float = 0.0, saved: float = 0.0, *, in_use: bool = False) -> StoredEntry:
    return StoredEntry(key, nbytes, used, saved, in_use)


def test_each_kind_keeps_to_its_room_and_those_without_have_what_is_left() -> None:
    kinds = {
        "a": [entry("a1", 4, used=1), entry("a2", 4, used=2)],
        "b": [entry("b1", 4, used=3)],
        "none": [entry("n1", 4, used=9), entry("n2", 4, used=8)],
    }
    assert entries_over_quota(kinds, 100, {}, "lru") == ()
    assert entries_over_quota(kinds, 100, {"a": 4, "b": 4}, "lru") == ("a1",)
    assert entries_over_quota(kinds, 12, {"a": 4, "b": 4}, "lru") == ("a1", "n2")
    assert entries_over_quota(kinds, 8, {"a": 8, "b": 0}, "lru") == ("b1", "n1", "n2")
    assert entries_over_quota(kinds, 4, {"a": 8, "b": 8}, "lru") == ("n1", "n2", "a1", "a2")


ENTRIES = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5), st.integers(0, 5), st.booleans()), max_size=10).map(
    lambda rows: [entry(str(at), size, used, saved, in_use=busy) for at, (size, used, saved, busy) in enumerate(rows)]
)


def expected_to_go(entries: list[StoredEntry], room: int, policy: EvictionPolicy) -> list[str]:
    """Return what goes: the least worth first, until the rest fits; of these, what fits again stays."""

    def worth(one: StoredEntry) -> tuple[Fraction, Fraction]:
        benefit, used = Fraction(one.seconds_saved) / max(1, one.nbytes), Fraction(one.last_used)
        return (benefit, -used) if policy == "benefit" else (used, benefit)

    left, gone = sum(one.nbytes for one in entries), list[StoredEntry]()
    for one in sorted(entries, key=worth):
        if left > room and not one.in_use:
            gone.append(one)
            left -= one.nbytes
    stay = set()
    for one in reversed(gone):
        if left + one.nbytes <= room:
            stay.add(one.key)
            left += one.nbytes
    return [one.key for one in gone if one.key not in stay]


@given(ENTRIES, st.integers(0, 120), st.sampled_from(get_args(EvictionPolicy)))
@examples(150)
def test_the_least_worth_goes_and_nothing_goes_for_nothing(
    entries: list[StoredEntry], max_bytes: int, policy: EvictionPolicy
) -> None:
    assert list(entries_to_evict(entries, max_bytes, policy)) == expected_to_go(entries, max_bytes, policy)
