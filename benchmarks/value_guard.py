"""How well harmful exchanges of operators are told from harmless ones.

    python benchmarks/value_guard.py [--curve] [--data FOLDER] [--elements 64] [--seed 0] [--half tune|judge]

Each exchange is a pipeline of a few operators, of which two change places; its label says what that does to what the
user meant, and was given before any guard was run on it.  Without `--curve`, AutoOrder looks at each exchange as it
does before it adopts one, and what it decides is compared with the labels.  `--curve` asks no guard: it measures how
far each exchange moves results (E) beside what its operators do (D), and prints how many exchanges each bound of E / D
lets pass.

A name decides the half of an exchange: ``--half tune`` serves to find a bound, ``--half judge`` to judge it.  `--data`
names a folder of photographs in class folders.  Exchanges of torchvision, Albumentations and librosa are there where
these libraries are installed.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pecan_ray as pecan
from benchmarks.guard import curve, plans
from benchmarks.guard.elements import elements
from benchmarks.guard.exchange import Exchange
from benchmarks.guard.exchanges import all_exchanges
from pecan_ray.autoorder.op_runner import SampleLimits
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.autoorder.sample import restore_globals, sample_op_sequence
from pecan_ray.autoorder.trial import Trial
from pecan_ray.plan.op_sequences import op_sequences
from pecan_ray.plan.splits import Element
from pecan_ray.reorder import auto_order


def look(exchange: Exchange, given: list[Element]) -> tuple[str, tuple[str, ...]]:
    """Return why the exchange is refused, or "", and what it changes."""
    pipe = pecan.PecanPipeline(pecan.sources.Items([{name: one[name] for name in exchange.columns} for one in given]))
    for number, step in enumerate(exchange.steps):
        pipe = plans.add(pipe, plans.PlanPart(replace(step, name=f"{number}-{step.name}"), kind=step.kind))
    (stretch,) = op_sequences(pipe.plan)
    place = len(exchange.before)
    first, second = stretch.names[place : place + 2]
    order = (*stretch.names[:place], second, first, *stretch.names[place + 2 :])
    with restore_globals():
        sampled = sample_op_sequence(stretch, "python", 0, SampleLimits(len(given), math.inf))
        profiled = sampled.profile().profiled
        fixed = {one.name: one.reason for one in auto_order(profiled, "off").fixed}
        if first in fixed or second in fixed:
            return f"it keeps its place: {fixed.get(first) or fixed[second]}", ()
        trial = Trial(sampled, OrderRequest(pipe.plan))
        if not trial.exchanges.may((first, second)):
            return trial.exchanges.rejects()[first, second], ()
        refused = trial.look(order) or trial.verify(order)[0]
        return refused, tuple(one.description() for one in trial.exchanges.found(order) if one.changed)


def main() -> None:
    """Print what is refused, or the curve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curve", action="store_true")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--elements", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--half", choices=("tune", "judge", "all"), default="all")
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args()
    photographs = sorted(given.data.rglob("*.jpg")) if given.data else None
    sample = elements(given.elements, seed=given.seed, photographs=photographs)
    exchanges = list(all_exchanges(None if given.half == "all" else given.half))
    began = time.process_time()
    if given.curve:
        curve.report(exchanges, sample, given.seed, verbose=given.verbose)
    else:
        _judge(exchanges, sample, verbose=given.verbose)
    print(f"{given.elements} elements, {time.process_time() - began:.0f} s of CPU time")


def _judge(exchanges: list[Exchange], sample: list[Element], *, verbose: bool) -> None:
    counts: Counter[tuple[str, bool]] = Counter()
    for exchange in exchanges:
        refused, detected_changes = look(exchange, sample)
        counts[exchange.label, bool(refused)] += 1
        if verbose or bool(refused) != exchange.harmful:
            print(f"{exchange.label:8} {exchange.name}: {refused or 'let through'} ({exchange.why})")
            for told in detected_changes:
                print(f"    {told}")
    for label in ("harmful", "doubtful", "harmless"):
        passed, refused_count = counts[label, False], counts[label, True]
        print(f"{label:8}: {passed} of {passed + refused_count} let through")


if __name__ == "__main__":
    main()
