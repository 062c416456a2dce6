"""How many harmful and harmless exchanges each bound of E / D lets pass."""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchmarks.guard.effect import ExchangeEffect, effect
from benchmarks.guard.exchange import Exchange, Harm
from pecan_ray.plan.splits import Element

BOUNDS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
LABELS: tuple[Harm, ...] = ("harmful", "doubtful", "harmless")

MeasuredExchanges = list[tuple[Exchange, ExchangeEffect]]


def report(exchanges: Sequence[Exchange], sample: Sequence[Element], seed: int, *, verbose: bool) -> None:
    """Measure all exchanges, and print the curve and the exchanges that a bound decides."""
    measured: MeasuredExchanges = []
    for exchange in exchanges:
        try:
            measured.append((exchange, effect(exchange, sample, seed)))
        except Exception as error:  # whatever an operator raises in the user's own order on elements of other folders
            print(f"{exchange.name} does not run as it is written: {type(error).__name__}: {error}")
    for exchange, one in sorted(measured, key=lambda pair: (pair[0].label, pair[1].ratio)):
        if verbose or _is_close(exchange, one):
            told = one.failed or one.where or "equal"
            share = f"{one.ratio:6.3f} (median {one.typical:.3f}, whole {one.mean:.3f})"
            print(f"{exchange.label:8} {share} {exchange.name}: {told}; {exchange.why}")
    _print_curve(measured)


def _is_close(exchange: Exchange, one: ExchangeEffect) -> bool:
    """Tell whether a bound between 0.05 and 1 puts it on the side that its label does not have."""
    return one.ratio < BOUNDS[-1] if exchange.harmful else exchange.label == "harmless" and one.ratio > BOUNDS[0]


def passes(one: ExchangeEffect, whole: float, block: float) -> bool:
    """Tell whether bounds of E / D of elements and of their blocks let an exchange pass.

    Equal results count if the operators were seen to do something.
    """
    return one.proved if one.ratio == 0.0 else one.mean <= whole and one.ratio <= block


def _print_curve(measured: MeasuredExchanges) -> None:
    counts = {label: [one for exchange, one in measured if exchange.label == label] for label in LABELS}
    for label, found in counts.items():
        equal = sum(one.ratio == 0.0 for one in found)
        formed = sum(math.isinf(one.ratio) for one in found)
        print(f"{label:8} {len(found):4}: {equal} with equal results, {formed} with other forms, texts or elements")
    print("whole  block   harmful that pass   doubtful that pass   harmless that are refused")
    for whole, block in (*((bound, bound) for bound in BOUNDS), *((bound, 2 * bound) for bound in BOUNDS)):
        harmful, doubtful, harmless = (sum(passes(one, whole, block) for one in counts[label]) for label in LABELS)
        refused = len(counts["harmless"]) - harmless
        print(f"{whole:5.2f}  {block:5.2f}   {harmful:17}   {doubtful:18}   {refused:25}")
