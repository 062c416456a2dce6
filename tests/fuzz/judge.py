"""Running one case, and judging what two readers gave."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.fuzz.catalogue import FORMATS
from tests.fuzz.formats import Format, Reading
from tests.fuzz.values import as_it_is


@dataclass(frozen=True)
class Failure:
    kind: str
    """"bare", "refused", "lost", "untold" or "different"."""
    text: str


def run_case(name: str, seed: int, folder: Path) -> Failure | None:
    """Make the file of a format and a seed, and judge what is read of it."""
    form, text = FORMATS[name], f"{name}:{seed}"
    data = form.damaged(Random(text))
    is_whole = as_it_is in form.damages and data == form.make(Random(text))
    return judge(name, data, folder, is_whole=is_whole)


def judge(name: str, data: bytes, folder: Path, *, is_whole: bool = False) -> Failure | None:
    """Read a file of a format with both readers; return what is wrong with ours, which may not refuse a whole one."""
    form = FORMATS[name]
    path = folder / f"case{form.ending}"
    path.write_bytes(data)
    try:
        ours = form.ours(path)
    except Exception:
        return Failure("bare", traceback.format_exc())
    if is_whole and ours.problem is not None:
        return Failure("refused", ours.problem)
    return compare(form, ours, form.reference(path))


def compare(form: Format, ours: Reading, reference: Reading) -> Failure | None:
    if not form.in_order:
        return _among(ours, reference)
    common = min(len(ours.elements), len(reference.elements))
    for number in range(common):
        if ours.elements[number] != reference.elements[number]:
            pair = f"{ours.elements[number]!r} is not {reference.elements[number]!r}"
            return Failure("different", f"element {number}: {pair}"[:2000])
    if ours.problem is not None:
        return None
    if len(ours.elements) < len(reference.elements):
        return Failure("lost", f"{len(ours.elements)} of {len(reference.elements)} elements, and nothing was told")
    if reference.problem is not None:
        return Failure("untold", f"the reference says: {reference.problem}"[:2000])
    if len(ours.elements) > len(reference.elements):
        return Failure("different", f"{len(ours.elements)} elements instead of {len(reference.elements)}")
    return None


def _among(ours: Reading, reference: Reading) -> Failure | None:
    """Compare the members of samples, whose reference finds members behind damage too."""
    mine, theirs = Counter(_members(ours)), Counter((name.lower(), data) for name, data in reference.elements)
    invented = mine - theirs
    if invented and reference.problem is None:
        return Failure("different", f"not in the archive: {sorted(invented)[0]!r}"[:500])
    if ours.problem is not None:
        return None
    lost = theirs - mine
    if lost:
        return Failure("lost", f"{sum(lost.values())} members, such as {sorted(lost)[0]!r}"[:500])
    if reference.problem is not None:
        return Failure("untold", f"the reference says: {reference.problem}"[:2000])
    return None


def _members(reading: Reading) -> Iterator[tuple[str, bytes]]:
    for sample in reading.elements:
        for name, data in sample:
            yield name.lower(), data
