"""Results as text and as JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from benchmarks.peers.harness import CaseResult, PeerSettings
from benchmarks.peers.judgement import SideComparison, compare, mismatches, summary
from benchmarks.peers.sides import SIDES

PACKAGES = (
    "pecan_ray", "ray", "tensorflow", "tensorflow-cpu", "torch", "spdl", "grain", "webdataset", "numpy", "pyarrow",
    "opencv-python-headless",
)  # fmt: skip


def machine() -> dict[str, Any]:
    """Describe the machine and the versions."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "versions": versions,
    }


def comparisons(result: CaseResult, most_foreign: float) -> list[SideComparison]:
    """Compare the pairs of a case, those with a peer that is missing left out."""
    return [
        compare(t.ours, t.peer, result.measured, t.ratio, most_foreign, result.case.bounds.get(t.ours, ""))
        for t in result.case.targets
        if t.peer not in result.missing and t.ours in result.measured and t.peer in result.measured
    ]


def case_table(result: CaseResult, most_foreign: float) -> str:
    """Return a case as a Markdown table, then the ratios and what was left out."""
    case = result.case
    times = case.first_batch
    what = "seconds to the first batch" if times else f"{case.unit}/s"
    lines = [f"## {case.key}: {case.title}", ""]
    lines.append(
        f"| side | {what} | least to most | CPU per {'start (s)' if times else 'element (µs)'} | memory (MB) |"
    )
    lines.append("| --- | ---: | ---: | ---: | ---: |")
    for name, measured in result.measured.items():
        seen = summary(measured, most_foreign)
        if seen is None:
            lines.append(f"| {name} | failed | | | |")
            continue
        values = [seen.median, seen.least, seen.most]
        if times:
            middle, least, most = f"{1 / seen.median:.2f}", f"{1 / seen.most:.2f}", f"{1 / seen.least:.2f}"
            cpu = f"{seen.cpu_s:.1f}"
        else:
            middle, least, most = (f"{value:,.0f}" for value in values)
            cpu = f"{1e6 * seen.cpu_s:,.0f}"
        mark = f"*{name}* (bound)" if SIDES[name].kind == "bound" else name
        lines.append(f"| {mark} | {middle} | {least} to {most} | {cpu} | {seen.memory >> 20} |")
    lines.append("")
    lines += [_in_words(comparison) for comparison in comparisons(result, most_foreign)]
    lines += [f"- left out: {name}: {reason}" for name, reason in result.missing.items()]
    peers = {name: shapes for name, shapes in result.shapes.items() if SIDES[name].kind != "bound"}
    lines += [f"- not the same work: {sentence}" for sentence in mismatches(peers)]
    return "\n".join(lines)


def _in_words(comparison: SideComparison) -> str:
    pair = f"{comparison.ours} against {comparison.peer}"
    if comparison.ratio is None:
        return f"- {pair}: no ratio: {comparison.reason}"
    wanted = ""
    if comparison.target is not None:
        wanted = f", target {comparison.target:.2f}: {'met' if comparison.met else 'MISSED'}"
    if comparison.met is False and comparison.limit is not None:
        share = comparison.ratio / comparison.limit
        wanted += f"; {comparison.bound} reaches {comparison.limit:.2f}x, of which these are {share:.0%}"
    extra = f"; CPU per element {comparison.cpu:.2f}x" if comparison.cpu is not None else ""
    extra += f" ({comparison.reason})" if comparison.reason else ""
    return f"- {pair}: {comparison.ratio:.2f}x ({comparison.least:.2f} to {comparison.most:.2f}){wanted}{extra}"


def as_json(results: Sequence[CaseResult], settings: PeerSettings, most_foreign: float) -> dict[str, Any]:
    """Return everything that was measured, and what follows from it."""
    return {
        "machine": machine(),
        "settings": asdict(settings) | {"most_foreign": most_foreign},
        "cases": {result.case.key: _case_json(result, most_foreign) for result in results},
    }


def _case_json(result: CaseResult, most_foreign: float) -> dict[str, Any]:
    summaries: Mapping[str, Any] = {name: summary(m, most_foreign) for name, m in result.measured.items()}
    return {
        "title": result.case.title,
        "unit": result.case.unit,
        "first_batch": result.case.first_batch,
        "measured": {name: [asdict(m) for m in measured] for name, measured in result.measured.items()},
        "summary": {name: asdict(seen) for name, seen in summaries.items() if seen is not None},
        "comparisons": [asdict(c) | {"met": c.met} for c in comparisons(result, most_foreign)],
        "missing": result.missing,
        "starts": result.starts,
        "shapes": result.shapes,
        "notes": result.notes,
    }
