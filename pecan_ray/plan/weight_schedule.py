"""Weights of `mix` that change as a run goes on: a function of the place in the run, and of nothing else.

So a run that is resumed, or whose worker is lost, draws as it would have.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pecan_ray.errors import PlanError, to_str
from pecan_ray.plan.arguments import natural
from pecan_ray.plan.option_types import of_kind

ScheduleUnit: TypeAlias = Literal["epoch", "elements"]


@dataclass(frozen=True)
class WeightSchedule:
    """Weights for `mix(weights=...)` by epoch, or by the elements that were drawn in an epoch.

    ``WeightSchedule([(0, [9, 1]), (3, [1, 1])])`` draws nine to one in the epochs 0 to 2, and evenly from epoch 3 on.
    """

    steps: Sequence[tuple[int, Sequence[float]]]
    """(from where on, the weights there), the first one from 0 on."""
    by: ScheduleUnit = "epoch"
    """What `steps` count: "epoch", as `iter_batches(epochs=...)` does; or "elements" that `mix` has drawn since the
    epoch began.  Then one worker runs the pipeline, since the others would not know of them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "by", of_kind("WeightSchedule(by=...)", self.by, ScheduleUnit))
        steps = _steps(self.steps)
        object.__setattr__(self, "steps", steps)
        begins = [begin for begin, _ in steps]
        if begins[0] != 0 or begins != sorted(set(begins)):
            raise PlanError(f"WeightSchedule: steps must begin from 0 on and rise, but got {begins}.")
        if len({len(weights) for _, weights in steps}) > 1:
            raise PlanError(
                f"WeightSchedule: each step needs as many weights, but got {[len(weights) for _, weights in steps]}."
            )

    def at(self, place: int) -> tuple[float, ...]:
        """Return the weights in an epoch, or for the element that is drawn behind so many."""
        return tuple(self.steps[bisect_right(self.steps, place, key=lambda step: step[0]) - 1][1])

    def lengths(self) -> list[tuple[int | None, tuple[float, ...]]]:
        """Return for how many epochs, or elements, which weights hold: None for those that hold from there on."""
        ends = [begin for begin, _ in self.steps[1:]]
        counts = [end - begin for end, (begin, _) in zip(ends, self.steps, strict=False)]
        return [(count, tuple(weights)) for count, (_, weights) in zip([*counts, None], self.steps, strict=True)]


def checked_weights(what: str, given: Sequence[float], count: int | None = None) -> tuple[float, ...]:
    """Return weights, of which there must be `count` if that is known; raises `PlanError` for others."""
    weights: tuple[float, ...] = of_kind(what, given, Sequence[float])
    wanted = len(weights) if count is None else count
    if len(weights) != wanted or not weights or not _are_shares(weights):
        number = "" if count is None else f" ({count})"
        raise PlanError(
            f"{what} needs one number >= 0 per pipeline{number}, of which one is positive, but got {list(weights)}."
        )
    return tuple(map(float, weights))


def _are_shares(weights: Sequence[float]) -> bool:
    """Tell whether no weight is negative, and their sum is a positive number too."""
    try:
        return all(weight >= 0 for weight in weights) and 0 < sum(map(float, weights)) < math.inf
    # A whole number may be larger than any float.
    except OverflowError:
        return False


def _steps(given: object) -> tuple[tuple[int, tuple[float, ...]], ...]:
    pairs = list(given) if isinstance(given, Sequence) and not isinstance(given, (str, bytes)) else []
    if not pairs or not all(isinstance(pair, Sequence) and len(pair) == 2 for pair in pairs):
        raise PlanError(
            f"WeightSchedule(steps=...) must be a list of pairs (from where on, weights), but got {to_str(given)}."
        )
    return tuple(
        (natural("WeightSchedule: a step", begin), checked_weights(f"WeightSchedule, from {begin} on:", weights))
        for begin, weights in pairs
    )
