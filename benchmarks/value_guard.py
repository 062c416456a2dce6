"""How well harmful exchanges of operators are told from harmless ones, by AutoOrder's look at a sample.

    python benchmarks/value_guard.py [--data FOLDER] [--elements 64] [--seed 0] [--half tune|judge] [--verbose]

Each exchange is a pipeline of a few operators, and the order in which two of them have changed places is looked at as
AutoOrder does before it adopts one: the form of the results, their values, and those of unusual elements.  Every second
exchange (``--half tune``) served to find the bounds of `pecan_ray.reorder.value_guard`, the others (``--half judge``)
to judge them.  `--data` names a folder of photographs in class folders.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pecan_ray as pecan
from benchmarks.guard import plans
from benchmarks.guard.elements import elements
from benchmarks.guard.exchanges import Exchange, harmful, harmless
from pecan_ray.autoorder.op_runner import SampleLimits
from pecan_ray.autoorder.sample import sample_stretch, undisturbed
from pecan_ray.autoorder.trial import Trial
from pecan_ray.plan.splits import Element
from pecan_ray.plan.stretches import stretches
from pecan_ray.reorder.value_guard import ColumnDifference


def look(exchange: Exchange, given: list[Element]) -> tuple[str, tuple[ColumnDifference, ...]]:
    """Return why the exchange is refused, or "", and what differs."""
    pipe = pecan.PecanPipeline(pecan.sources.Items(given))
    steps = (*exchange.before, exchange.first, exchange.second, *exchange.behind)
    for number, step in enumerate(steps):
        pipe = plans.add(pipe, plans.PlanPart(replace(step, name=f"{number}-{step.name}")))
    (stretch,) = stretches(pipe.plan)
    place = len(exchange.before)
    order = (*stretch.names[:place], *stretch.names[place : place + 2][::-1], *stretch.names[place + 2 :])
    limits = SampleLimits(len(given), math.inf)
    with undisturbed(pipe.plan), closing(sample_stretch(stretch, "python", 0, limits, afresh=True)) as sampled:
        trial = Trial(sampled, None, "python", mode="cost")
        refused = trial.look(order) or trial.verify_rest(order)[0]
        return refused, trial.differences(order)


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
        refused, differences = look(exchange, sample)
        counts[exchange.harmful, bool(refused)] += 1
        if given.verbose or bool(refused) != exchange.harmful:
            print(f"{'harmful ' if exchange.harmful else 'harmless'} {exchange.name}: {refused or 'let through'}")
            for one in differences:
                if one.changed and (given.verbose or not exchange.harmful):
                    print(f"    {one.told()}")
    print(
        f"{counts[False, True]} of {counts[False, False] + counts[False, True]} harmless exchanges refused, "
        f"{counts[True, False]} of {counts[True, False] + counts[True, True]} harmful ones let through, "
        f"{given.elements} elements, {time.process_time() - began:.0f} s of CPU time"
    )


if __name__ == "__main__":
    main()
