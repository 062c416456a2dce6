"""Checksums of entries, and writing them in parts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pecan_ray.caching.segments import MOST_PARTS, EntryChecksum, SegmentWriter, read_entry

PAGE_BYTES = 4096


def in_parts(data: bytes, dice: random.Random) -> list[bytes]:
    cuts = sorted(dice.randrange(len(data) + 1) for _ in range(dice.randrange(9)))
    return [data[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@pytest.mark.parametrize("size", [0, 1, 8, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, 5 * PAGE_BYTES + 77])
def test_a_checksum_does_not_depend_on_how_the_bytes_come(size: int) -> None:
    dice = random.Random(size)
    data = dice.randbytes(size)
    for _ in range(20):
        checksum = EntryChecksum()
        for part in in_parts(data, dice):
            checksum.add(part)
        assert checksum.value == EntryChecksum.of(data)


def test_what_disks_do_shows() -> None:
    dice = random.Random(1)
    data = dice.randbytes(6 * PAGE_BYTES + 100)
    right = EntryChecksum.of(data)
    for place in (*range(0, len(data), 331), len(data) - 1):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[place] ^= 1 << bit
            assert EntryChecksum.of(bytes(flipped)) != right
    pages = [data[at : at + PAGE_BYTES] for at in range(0, len(data), PAGE_BYTES)]
    for page in range(len(pages)):
        for other in (bytes(len(pages[page])), dice.randbytes(len(pages[page]))):  # nothing was written; an old one
            assert EntryChecksum.of(b"".join([*pages[:page], other, *pages[page + 1 :]])) != right
    pages[1], pages[4] = pages[4], pages[1]
    assert EntryChecksum.of(b"".join(pages)) != right
    for _ in range(50):  # two words that change their places, or by as much up as down
        first, second = dice.sample(range(len(data) // 8), 2)
        words = [data[at : at + 8] for at in range(0, len(data), 8)]
        words[first], words[second] = words[second], words[first]
        assert EntryChecksum.of(b"".join(words)) != right


def test_an_entry_of_many_parts_is_written_as_a_whole(tmp_path: Path) -> None:
    dice = random.Random(2)
    parts = [dice.randbytes(dice.randrange(200)) for _ in range(3 * MOST_PARTS + 7)]
    writer = SegmentWriter(tmp_path, "one.segment")
    for _ in range(2):
        start, checksum = writer.append(parts)
        data = b"".join(parts)
        assert read_entry(tmp_path / "one.segment", start, len(data)) == data
        assert checksum == EntryChecksum.of(data)
    writer.close()
