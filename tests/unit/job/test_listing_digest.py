"""A listing is compared with the one that a state was taken of: what has changed in it is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.job.listing_digest import ListingCheck
from pecan_ray.job.resume_point import KnownListing
from pecan_ray.plan.splits import Split
from tests.long_form import examples


def splits(count: int, **changed: str) -> list[Split]:
    """A listing, in which some splits have another version."""
    return [Split(n, path=f"part-{n}", version=changed.get(f"v{n}", "1")) for n in range(count)]


def check(before: list[Split], now: list[Split], *, complete: bool = True, page: int = 7) -> list[str]:
    """What a listing is told to have changed in, when a state was taken of another one."""
    first = ListingCheck([KnownListing()])
    first.add(0, before)
    if complete:
        first.end(0)
    second = ListingCheck(first.known())
    said = [second.add(0, now[at : at + page], now.__getitem__) for at in range(0, len(now), page)]
    return [one for one in (*said, second.end(0)) if one]


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 200, 5000])
@pytest.mark.parametrize("page", [1, 64, 100_000])
def test_the_same_listing_has_not_changed_however_it_is_paged(count: int, page: int) -> None:
    assert check(splits(count), splits(count), page=page) == []


@pytest.mark.parametrize("place", [0, 64, 130, 199])
def test_a_file_of_another_version_is_told_by_where_it_is(place: int) -> None:
    (said,) = check(splits(200), splits(200, **{f"v{place}": "2"}))
    places, _, names = said.removeprefix("other files, or versions of them, are among splits ").partition(": ")
    low, high = map(int, places.split(" to "))
    assert low <= place <= high < low + 64
    assert names == f"part-{place}"


def folder(count: int, *changed: int) -> list[Split]:
    """Splits of 64 files each, of which some have another version."""
    return [
        Split(
            number,
            path=f"image-{first}",
            files=tuple(f"image-{n}" for n in range(first, first + 64)),
            versions=tuple("2" if n in changed else "1" for n in range(first, first + 64)),
        )
        for number, first in enumerate(range(0, count, 64))
    ]


@given(st.sets(st.integers(0, 64 * 157 - 1), min_size=1, max_size=3))
@examples(10)
def test_of_ten_thousand_images_the_few_that_were_replaced_are_named(changed: set[int]) -> None:
    (said,) = check(folder(10_000), folder(10_000, *changed), page=50)
    names = said.partition(": ")[2].split(", ")
    assert {f"image-{n}" for n in changed} <= set(names)
    assert len(names) <= len(changed) + 1, "another one by chance, once in thousands of times"


def test_more_and_fewer_splits_are_told() -> None:
    assert check(splits(100), splits(90)) == ["there were at least 100 splits, and now there are 90"]
    (said,) = check(splits(100), splits(101), page=100)
    assert said == "there were 100 splits, and now there are more, from part-100"
    assert check(splits(100), splits(120), complete=False) == [], "the listing had not ended"
