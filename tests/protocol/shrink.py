"""From a history that fails to a smaller one that fails alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

from tests.protocol.scenario import Fault, Scenario, SplitModel
from tests.protocol.world import HistoryOutcome, play

MOST_TRIES = 400
SIMPLER = (
    *(
        "lost",
        "doubled",
        "auto",
        "rivals",
        "order_s",
        "late_s",
        "placing_s",
        "at_hand",
        "streams",
        "unseen",
        "shuffled",
    ),
    *(
        "in_order",
        "numbered",
        "joined",
        "promised",
        "window",
        "repetitions",
        "page",
        "page_s",
        "take",
        "stop_after",
    ),
    *("left_apart", "left", "drop_remainder", "row_bytes", "prefetch_bytes", "outbox", "delay_s", "element_s"),
    *("steps_s", "batch_size"),
)
"""Options that are as usual in a simple history."""


def shrink(scenario: Scenario, run: Callable[[Scenario], HistoryOutcome] = play) -> Scenario:
    """Return a history as small as can be found that breaks the same promise."""
    sort = _sort(run(scenario))
    tries = 0
    smaller = True
    while smaller and tries < MOST_TRIES:
        smaller = False
        for candidate in _candidates(scenario):
            tries += 1
            if _sort(run(candidate)) == sort:
                scenario, smaller = candidate, True
                break
            if tries >= MOST_TRIES:
                break
    return scenario


def describe(scenario: Scenario) -> str:
    """Write a scenario as Python, without what is as usual."""
    usual = Scenario()
    told = [
        f"{one.name}={getattr(scenario, one.name)!r}"
        for one in fields(scenario)
        if getattr(scenario, one.name) != getattr(usual, one.name)
    ]
    return f"Scenario({', '.join(told)})".replace(", torn=None", "").replace("outputs=", "")


def described(text: str) -> Scenario:
    """Return the scenario that was written."""
    scenario = eval(text, {"Scenario": Scenario, "SplitModel": SplitModel, "Fault": Fault, "inf": math.inf})
    assert isinstance(scenario, Scenario)
    return scenario


def _sort(outcome: HistoryOutcome) -> str:
    """Return which promise was broken, without numbers and names."""
    return "".join(letter for letter in outcome.failure[:60] if letter.isalpha()) if outcome.failure else ""


def _candidates(scenario: Scenario) -> Iterator[Scenario]:
    """Yield smaller histories, those that save most first."""
    half = len(scenario.faults) // 2
    if half > 1:
        yield replace(scenario, faults=scenario.faults[:half])
        yield replace(scenario, faults=scenario.faults[half:])
    for place in range(len(scenario.faults)):
        yield replace(scenario, faults=scenario.faults[:place] + scenario.faults[place + 1 :])
    if len(scenario.sources) > 1:
        for place in range(len(scenario.sources)):
            yield replace(scenario, sources=scenario.sources[:place] + scenario.sources[place + 1 :])
    for place, source in enumerate(scenario.sources):
        for fewer in _fewer(source):
            yield replace(scenario, sources=(*scenario.sources[:place], fewer, *scenario.sources[place + 1 :]))
    for name, least in (("ranks", 1), ("epochs", 1), ("local", 0), ("remote", 0)):
        count = getattr(scenario, name)
        if isinstance(count, int) and count > least and (name != "local" or scenario.remote or count > 1):
            for lower in sorted({least, count // 2, count - 1}):
                if lower >= least and (lower or name != "remote" or scenario.local):
                    change: dict[str, Any] = {name: lower}
                    changed = replace(scenario, **change)
                    if changed.local + changed.remote:
                        yield changed
    for name in SIMPLER:
        value = getattr(Scenario(), name)
        if getattr(scenario, name) != value and not (name == "stop_after" and scenario.epochs is None):
            change = {name: value}
            yield replace(scenario, **change)


def _fewer(source: tuple[SplitModel, ...]) -> Iterator[tuple[SplitModel, ...]]:
    half = len(source) // 2
    if half > 1:
        yield source[:half]
        yield source[half:]
    for place, split in enumerate(source):
        yield source[:place] + source[place + 1 :]
        if len(split.outputs) > 1:
            shorter = SplitModel(split.outputs[: len(split.outputs) // 2])
            yield (*source[:place], shorter, *source[place + 1 :])
