"""How well harmful exchanges of operators are told from harmless ones, by the values of a sample alone.

    python benchmarks/value_guard.py [--data FOLDER] [--elements 64] [--seed 0] [--half tune|judge] [--verbose]

Every second exchange (``--half tune``) served to find the bounds of `pecan_ray.reorder.value_guard`, the others
(``--half judge``) to judge them.  `--data` names a folder of photographs in class folders.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.guard.elements import elements
from benchmarks.guard.exchanges import Exchange, harmful, harmless
from benchmarks.guard.ops import Element
from pecan_ray.autoorder.values import summaries
from pecan_ray.reorder.value_guard import ValueGuard


def guard_of(exchange: Exchange, given: list[Element]) -> ValueGuard:
    """Return the values of both orders."""
    guard = ValueGuard()
    usual = [exchange.run(element, number, exchanged=False) for number, element in enumerate(given)]
    other = [exchange.run(element, number, exchanged=True) for number, element in enumerate(given)]
    for before, after in zip(usual, other, strict=True):
        guard.add(summaries(before), summaries(after))
    return guard


def halves(half: str) -> list[Exchange]:
    """Return all exchanges, or every second one."""
    begin, step = {"tune": (0, 2), "judge": (1, 2)}.get(half, (0, 1))
    return [*list(harmless())[begin::step], *list(harmful())[begin::step]]


def main() -> None:
    """Print what is refused."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--elements", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--half", choices=("tune", "judge", "all"), default="all")
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args()
    photographs = sorted(given.data.rglob("*.jpg")) if given.data else None
    sample = elements(given.elements, seed=given.seed, photographs=photographs)
    counts = {(harm, refused): 0 for harm in (False, True) for refused in (False, True)}
    began = time.process_time()
    for exchange in halves(given.half):
        guard = guard_of(exchange, sample)
        refused = guard.refused(exchange.free)
        counts[exchange.harmful, bool(refused)] += 1
        if given.verbose or bool(refused) != exchange.harmful:
            print(f"{'harmful ' if exchange.harmful else 'harmless'} {exchange.name}: {refused or 'let through'}")
            for one in guard.differences(exchange.free):
                if one.changed and (given.verbose or not exchange.harmful):
                    print(f"    {one.told()}")
    print(
        f"{counts[False, True]} of {counts[False, False] + counts[False, True]} harmless exchanges refused, "
        f"{counts[True, False]} of {counts[True, False] + counts[True, True]} harmful ones let through, "
        f"{given.elements} elements, {time.process_time() - began:.0f} s of CPU time"
    )


if __name__ == "__main__":
    main()
