"""What AutoOrder found and did, for people: a table for a terminal, HTML for a notebook, JSON."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

from pecan_ray.autoorder.accepted import AS_WRITTEN, STRETCHES_AS_JSON, OpSequenceOrder, Ordering
from pecan_ray.autoorder.op_samples import OpSample
from pecan_ray.errors import PlanError
from pecan_ray.plan.operators import ElementOp, Op, Plan

ExplainFormat: TypeAlias = Literal["text", "html", "json"]

COUNTS = ("bytes_in", "bytes_out", "elements_in", "elements_out")
HEADINGS = ("now", "was", "operator", "factor", "bytes in -> out", "us/element", "why")


class OrderReport(str):
    """A text that prints as it is, also at a prompt and in a notebook."""

    def __repr__(self) -> str:
        return str(self)


def explain(name: str, ordering: Ordering, format: ExplainFormat = "text") -> str:
    """Return an ordering in words; raises `PlanError` for a format that does not exist."""
    if format not in get_args(ExplainFormat):
        known = ", ".join(map(repr, get_args(ExplainFormat)))
        raise PlanError(f"explain: format must be one of {known}, but got {format!r}.")
    if format == "json":
        return as_json(name, ordering)
    report = OrderReport(as_text(name, ordering))
    # Names of operators, files and elements are anybody's texts.
    return report if format == "text" else f"<pre>{html.escape(report)}</pre>"


def rows(ordering: Ordering) -> list[dict[str, Any]]:
    """Return what is known of each operator in the new order, those of a join's inputs first: as JSON has it."""
    before = {op.name: number for number, op in enumerate(ordering.before.all_ops(), 1)}
    whys: dict[str, str] = {}
    samples: dict[str, OpSample] = {}
    for stretch in ordering.sequences:
        whys.update(_reason_by_op(stretch))
        samples.update({op.name: op for op in stretch.sample.ops})
    found = []
    for number, op in enumerate(ordering.plan.all_ops(), 1):
        why = whys.get(op.name) or _why_not_sampled(op)
        row = {"name": op.name, "now": number, "was": before[op.name], "why": why, "moved": why.startswith("moved")}
        if one := samples.get(op.name):
            row |= {what: getattr(one, what) for what in COUNTS} | {"factor": one.inflation if one.measured else None}
            row["microseconds"] = None if one.seconds is None else 1e6 * one.seconds
        found.append(row)
    return found


def _columns(row: Mapping[str, Any]) -> tuple[str, ...]:
    factor = sizes = seconds = "-"
    if row.get("factor") is not None and row["microseconds"] is not None:
        # Both for an element that goes in, so that their ratio is the factor.
        sizes = " -> ".join(_bytes(row[what] / row["elements_in"]) for what in ("bytes_in", "bytes_out"))
        factor, seconds = f"{row['factor']:.3g}", f"{row['microseconds']:.0f}"
    return str(row["now"]), str(row["was"]), row["name"], factor, sizes, seconds, row["why"]


def _reason_by_op(stretch: OpSequenceOrder) -> dict[str, str]:
    plan = stretch.accepted
    # What comes later says more of the same operator.
    whys = {op.name: "free" for op in plan.ops}
    whys.update({fixed.name: f"fixed: {fixed.reason}" for fixed in plan.fixed})
    whys.update({move.name: f"moved: {move.reason}" for move in plan.moves})
    return whys


def _why_not_sampled(op: Op) -> str:
    if not isinstance(op, ElementOp):
        return "barrier"
    if op.keep_position:
        return "fixed: keep_position=True"
    return "not sampled: it works on batches, or there is nothing to exchange it with"


def describe_speedup(stretch: OpSequenceOrder) -> str:
    """Say what a new order, and what is rewritten, is worth; empty for the user's own."""
    messages = list[str]()
    decoding = stretch.taken_over.measured or stretch.users_taken_over.measured
    if decoding is not None and stretch.taken_over.pushed:
        rewritten = " and ".join(one.description() for one in stretch.taken_over.pushed)
        messages.append(f"rewritten, as {rewritten}: {decoding.description()}")
    if stretch.accepted.changed and stretch.measured is not None:
        messages.append(f"the new order: {stretch.measured.description()}")
    gain = stretch.whole_speedup
    if messages and gain is not None:
        messages.append(f"the whole pipeline {gain:.2f}x, of whose time these take {stretch.share:.0%}")
    return ", ".join(messages)


def as_text(name: str, ordering: Ordering) -> str:
    """Return a table and what was refused, for a terminal."""
    summary = ordering.summary() or f"{AS_WRITTEN}: it is switched off, or there are no two operators to exchange"
    lines = [f'{name} (mode "{ordering.mode}"): {summary}', f"  before: {' -> '.join(_names(ordering.before))}"]
    if ordering.changed:
        lines.append(f"  now:    {' -> '.join(_names(ordering.plan))}")
    lines += [f"  {message}" for stretch in ordering.sequences if (message := describe_speedup(stretch))]
    lines += ["", *_table([HEADINGS, *map(_columns, rows(ordering))])]
    differences, rejected = list[str](), list[str]()
    for stretch in ordering.sequences:
        differences += [one.description() for one in stretch.exchanges]
        changes = stretch.taken_over.detected_changes
        differences += [f"what decoders take over changes {one.description()}" for one in changes]
        rejected += [f"{' -> '.join(one.order)}: {one.reason}" for one in stretch.rejected]
    lines += _listed("results beside those of the order as it is written:", differences)
    lines += _listed("tried and not done:", rejected)
    if ordering.notes:
        lines += ["", *(f"note: {note}" for note in ordering.notes)]
    return "\n".join(lines)


def _listed(heading: str, texts: Sequence[str]) -> list[str]:
    return ["", heading, *(f"  {text}" for text in texts)] if texts else []


def _table(cells: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEADINGS))]
    numeric = {0, 1, 3, 4, 5}
    lines = []
    for row in cells:
        padded = [
            cell.rjust(width) if column in numeric else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  " + "  ".join(padded).rstrip())
    lines.insert(1, "  " + "  ".join("-" * width for width in widths[:-1]) + "  ---")
    return lines


def as_json(name: str, ordering: Ordering) -> str:
    """Return the same as JSON, with numbers as they were measured; of stretches all that is kept with an order."""
    facts = {
        "pipeline": name,
        "mode": ordering.mode,
        "changed": ordering.changed,
        "summary": ordering.summary(),
        "seconds": ordering.seconds,
        "before": _names(ordering.before),
        "after": _names(ordering.plan),
        "operators": rows(ordering),
        "stretches": STRETCHES_AS_JSON.encode(ordering.sequences),
        "notes": ordering.notes,
    }
    return json.dumps(facts, indent=2)


def _names(plan: Plan) -> list[str]:
    return [op.name for op in plan.all_ops()]


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        # 999.5 and more would be spelled 1e+03.
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
