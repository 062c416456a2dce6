"""The operators of a plan before and after AutoOrder, from what `explain("json")` tells."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pecan_ray.observe.dashboard.amounts import amount, size
from pecan_ray.observe.dashboard.html_builder import Content, SafeHtml, element, table

HEADINGS = ("operator", "place", "bytes in", "bytes out", "µs/element", "why")
NUMBERS = frozenset({1, 2, 3, 4})


def plan_tables(order_text: str) -> list[Content]:
    """Return the order as it was written and the one that runs, with bytes and time of each operator."""
    found = _read(order_text)
    if found is None:
        return [
            element("p", "What AutoOrder found is not known: the job has not begun, or its controller was lost since.")
        ]
    operators = {str(one.get("name")): one for one in found.get("operators", ())}
    before = [str(name) for name in found.get("before", ())]
    after = [str(name) for name in found.get("after", ())]
    changed = before != after
    tables: list[Content] = [
        element("p", str(found.get("summary") or "AutoOrder left the order as it is written.")),
        chain("As it is written", before, frozenset()),
    ]
    moved = frozenset(name for name in after if operators.get(name, {}).get("moved"))
    if changed:
        tables.append(chain("As it runs", after, moved))
    sampled = "As it is written, with what the sample measured"
    tables.append(table(sampled, HEADINGS, _rows(before, operators), numbers=NUMBERS))
    tables += [element("p", f"Note: {note}") for note in found.get("notes", ())]
    return tables


def chain(title: str, names: Sequence[str], moved: frozenset[str]) -> SafeHtml:
    """Return an order as a list from first to last; what has moved is marked, in words too."""
    items = [
        element(
            "li",
            name,
            element("small", " (moved)") if name in moved else None,
            class_="moved" if name in moved else None,
        )
        for name in names
    ]
    return element("div", element("h3", title), element("ol", items, class_="chain"))


def _read(order_text: str) -> Mapping[str, Any] | None:
    try:
        found = json.loads(order_text) if order_text else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _rows(names: Sequence[str], operators: Mapping[str, Mapping[str, Any]]) -> list[tuple[Content, ...]]:
    rows: list[tuple[Content, ...]] = []
    for place, name in enumerate(names, 1):
        one = operators.get(name, {})
        into, elements = one.get("bytes_in"), one.get("elements_in") or 0
        per = [
            size(total / elements) if total is not None and elements else "-" for total in (into, one.get("bytes_out"))
        ]
        rows.append((name, str(place), *per, amount(one.get("microseconds")), str(one.get("why", ""))))
    return rows
