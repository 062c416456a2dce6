"""Slices of a file that grows: few, and whatever is there of them, a beginning of the file."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.job import journal_slices
from pecan_ray.job.journal_slices import JournalSlice, in_order, next_slice, slice_named


class Objects:
    def __init__(self, most: int) -> None:
        self.most = most
        self.kept: dict[str, bytes] = {}
        self.there: list[JournalSlice] = []
        self.written = 0

    def copy(self, file: bytes, generation: int = 0, base: int = 0, stays: bool = False) -> None:
        """Write what is not there yet; `stays`: what that takes the place of cannot be removed."""
        whole = JournalSlice("journal", generation, base, 0, len(file))
        while (step := next_slice(self.there, whole)) is not None:
            new, taken = step
            assert new.stop - new.start <= max(self.most, 1)
            self.kept[new.name] = file[new.start : new.stop]
            self.written += new.stop - new.start
            gone = self.there[len(self.there) - taken :]
            self.there[len(self.there) - taken :] = [new]
            for one in gone:
                if one.name != new.name and not stays:
                    del self.kept[one.name]

    def found(self) -> list[JournalSlice]:
        slices = [slice_named(name, len(data)) for name, data in self.kept.items()]
        return [one for one in slices if one is not None]

    def read(self) -> bytes:
        data = b""
        for one in in_order(self.found(), "journal"):
            assert one.start <= len(data)
            if one.start == len(data):
                data += self.kept[one.name]
        return data


@given(st.lists(st.integers(0, 50), max_size=60), st.sampled_from([40, 200, 10_000]), st.booleans())
def test_a_file_that_grows_is_read_as_it_is(steps: list[int], most: int, stays: bool) -> None:
    before, journal_slices.MOST_SLICE_BYTES = journal_slices.MOST_SLICE_BYTES, most
    try:
        objects, file = Objects(most), b""
        for number, step in enumerate(steps):
            file += bytes([number]) * step
            objects.copy(file, stays=stays)
            assert objects.read() == file
    finally:
        journal_slices.MOST_SLICE_BYTES = before
    digits = math.log2(max(len(file), 1)) + 2
    assert objects.written <= len(file) * digits and len(objects.there) <= digits + 2 * len(file) / most


def test_a_generation_counts_as_soon_as_its_base_is_there() -> None:
    objects = Objects(1 << 20)
    objects.copy(b"old entries")
    old = dict(objects.kept)
    objects.there = []
    objects.copy(b"snap", 1, 8)
    assert objects.read() == b"old entries", "half of a snapshot says nothing"
    objects.copy(b"snapshot", 1, 8)
    objects.kept |= old  # not yet removed
    assert objects.read() == b"snapshot"
    objects.copy(b"snapshot, and on", 1, 8)
    assert objects.read() == b"snapshot, and on"


def test_other_names_are_no_slices() -> None:
    one = JournalSlice("listings", 3, 10, 20, 25)
    assert slice_named(one.name, 5) == one
    for name in ("job", f"{one.name}.new", one.name[1:], one.name.replace("listings", "others")):
        assert slice_named(name, 5) is None
    assert in_order([], "journal") == []
