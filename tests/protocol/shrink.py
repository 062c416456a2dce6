"""From a history that fails to a smaller one that fails alike, and how histories are written."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from tests.protocol.scenario import Fault, Scenario, SplitModel
from tests.protocol.world import HistoryOutcome, play

MOST_TRIES = 400
USUAL = {one.name: getattr(Scenario(), one.name) for one in fields(Scenario)}
"""A scenario with nothing out of the ordinary."""


def shrink(scenario: Scenario) -> Scenario:
    """Return a history as small as can be found that breaks the same promise."""
    sort, tries = _sort(play(scenario)), 0
    candidates = _candidates(scenario)
    while (candidate := next(candidates, None)) is not None and tries < MOST_TRIES:
        tries += 1
        if _sort(play(candidate)) == sort:
            scenario = candidate
            candidates = _candidates(scenario)
    return scenario


def describe(scenario: Scenario) -> str:
    """Write a scenario as Python, without what is as usual."""
    told = [f"{name}={held!r}" for name, held in vars(scenario).items() if held != USUAL[name]]
    return f"Scenario({', '.join(told)})".replace(", torn=None", "").replace("outputs=", "")


def described(text: str) -> Scenario:
    """Return the scenario that was written."""
    scenario = eval(text, {"Scenario": Scenario, "SplitModel": SplitModel, "Fault": Fault, "inf": math.inf})
    assert isinstance(scenario, Scenario)
    return scenario


def _sort(outcome: HistoryOutcome) -> str:
    """Return which promise was broken, without numbers and names."""
    return "".join(letter for letter in outcome.failure[:60] if letter.isalpha())


def _candidates(scenario: Scenario) -> Iterator[Scenario]:
    """Yield smaller histories, those that save most first: fewer faults and splits, smaller numbers, usual options."""
    for faults in _shorter(scenario.faults):
        yield replace(scenario, faults=faults)
    for fewer in _shorter(scenario.sources, least=1):
        yield replace(scenario, sources=fewer)
    for place, source in enumerate(scenario.sources):
        shorter = [
            (*source[:at], replace(split, outputs=outputs, torn=None), *source[at + 1 :])
            for at, split in enumerate(source)
            for outputs in _shorter(split.outputs, least=1)
        ]
        for fewer in [*_shorter(source), *shorter]:
            yield replace(scenario, sources=(*scenario.sources[:place], fewer, *scenario.sources[place + 1 :]))
    for name, held in vars(scenario).items():
        if name in ("seed", "sources", "faults") or held == USUAL[name]:
            continue
        larger = type(held) is int and isinstance(USUAL[name], int) and held > USUAL[name]
        for change in (USUAL[name], *((held // 2, held - 1) if larger else ())):
            changed = replace(scenario, **{name: change})
            endless = changed.epochs is None and changed.stop_after is None
            if min(changed.ranks, changed.epochs or 1, changed.local + changed.remote) > 0 and not endless:
                yield changed


def _shorter(items: tuple[Any, ...], least: int = 0) -> Iterator[tuple[Any, ...]]:
    """Yield both halves of a tuple, and all of it but one."""
    half = len(items) // 2
    if half > 1:
        yield from (items[:half], items[half:])
    if len(items) > least:
        yield from (items[:place] + items[place + 1 :] for place in range(len(items)))
