"""Write the tables of docs/benchmarks.md, and of the pages behind it, from their record, docs/benchmarks/results.json.

    python -m benchmarks.document                                                  # write the tables again
    python -m benchmarks.document --merge build/bench.json --commit $(git rev-parse --short HEAD)

`--merge` takes what `python -m benchmarks.peers --json FILE` wrote into the record; newer figures replace older ones.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.peers.sides import SIDES

DOCS = Path(__file__).resolve().parents[1] / "docs"
HEAD = DOCS / "benchmarks.md"
PAGES = DOCS / "benchmarks"
RECORD = PAGES / "results.json"
BLOCK = re.compile(r"(<!-- results: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
ALL_CASES = "all"
PEERS = "python -m benchmarks.peers"
SECONDS = "s to the first batch"
LONG_US = 1e5
"""CPU times from here on are printed in seconds."""


@dataclass(frozen=True)
class RecordedRun:
    """Where and when figures were measured."""

    date: str
    commit: str
    command: str
    machine: str
    load: str
    note: str = ""


@dataclass(frozen=True)
class RecordedFigure:
    """What one side of a case reached."""

    case: str
    side: str
    value: float
    unit: str
    run: str
    least: float | None = None
    most: float | None = None
    cpu_us: float | None = None
    """CPU time for an element."""
    memory_mb: int | None = None
    bound: bool = False
    """The side is a physical limit, and no peer."""


@dataclass(frozen=True)
class RecordedRatio:
    """Ours over a peer."""

    case: str
    ours: str
    peer: str
    ratio: float
    run: str
    least: float | None = None
    most: float | None = None
    of: str = "speed"
    """Quantity that is compared."""


@dataclass(frozen=True)
class BenchmarkRecord:
    """All figures of the pages."""

    runs: Mapping[str, RecordedRun]
    figures: Sequence[RecordedFigure]
    ratios: Sequence[RecordedRatio]


def read(text: str) -> BenchmarkRecord:
    """Read a record."""
    facts = json.loads(text)
    return BenchmarkRecord(
        {name: RecordedRun(**run) for name, run in facts["runs"].items()},
        [RecordedFigure(**figure) for figure in facts["figures"]],
        [RecordedRatio(**ratio) for ratio in facts["ratios"]],
    )


def write(record: BenchmarkRecord) -> str:
    """Return a record as JSON, one entry a line, without runs that nothing refers to."""
    used = {figure.run for figure in record.figures} | {ratio.run for ratio in record.ratios}
    runs = ",\n".join(f"{_line(name)}: {_line(_stated(run))}" for name, run in record.runs.items() if name in used)
    figures = ",\n".join(_line(_stated(figure)) for figure in record.figures)
    ratios = ",\n".join(_line(_stated(ratio)) for ratio in record.ratios)
    return f'{{\n"runs": {{\n{runs}\n}},\n"figures": [\n{figures}\n],\n"ratios": [\n{ratios}\n]\n}}\n'


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _stated(entry: RecordedRun | RecordedFigure | RecordedRatio) -> dict[str, Any]:
    """Return the fields that do not have their default."""
    defaults = type(entry).__dataclass_fields__
    return {name: value for name, value in asdict(entry).items() if value != defaults[name].default}


def merge(record: BenchmarkRecord, facts: Mapping[str, Any], commit: str, date: str) -> BenchmarkRecord:
    """Add what `benchmarks.peers --json` wrote.

    Args:
        record: What is known.
        facts: The JSON of the run.
        commit: The commit that was measured.
        date: The day, as 2026-11-28.

    Returns:
        The record, with the figures of the run in the place of older ones of the same case and sides.

    Raises:
        ValueError: a side of the run is none of `benchmarks.peers.sides` (a run with `--before`).
    """
    name = f"{date} {commit}"
    figures, ratios = [], []
    for case, result in facts["cases"].items():
        for side, seen in result["summary"].items():
            figures.append(_figure(case, side, seen, result, name))
        for compared in result["comparisons"]:
            if compared["ratio"] is not None:
                values = {key: compared[key] for key in ("ours", "peer", "ratio", "least", "most")}
                ratios.append(_rounded(RecordedRatio(case=case, run=name, **values)))
    return BenchmarkRecord(
        {**record.runs, name: _run(facts, commit, date)},
        _replaced(record.figures, figures),
        _replaced(record.ratios, ratios),
    )


def _figure(case: str, side: str, seen: Mapping[str, Any], result: Mapping[str, Any], run: str) -> RecordedFigure:
    if side not in SIDES:
        raise ValueError(
            f"{case}: {side!r} is no side of benchmarks/peers/sides. Merge runs beside peers, not those with --before."
        )
    values = [seen["median"], seen["least"], seen["most"]]
    unit = f"{result['unit']}/s"
    if result["first_batch"]:
        unit, values = SECONDS, [1 / values[0], 1 / values[2], 1 / values[1]]
    digits = 2 if values[0] < 100 else None
    value, least, most = (round(each, digits) for each in values)
    bound = SIDES[side].kind == "bound"
    cpu_us = round(1e6 * seen["cpu_s"])
    return RecordedFigure(case, side, value, unit, run, least, most, cpu_us, seen["memory"] >> 20, bound)


def _rounded(ratio: RecordedRatio) -> RecordedRatio:
    least, most = (None if end is None else round(end, 2) for end in (ratio.least, ratio.most))
    return replace(ratio, ratio=round(ratio.ratio, 2), least=least, most=most)


def _run(facts: Mapping[str, Any], commit: str, date: str) -> RecordedRun:
    machine, settings = facts["machine"], facts["settings"]
    versions = ", ".join(f"{package} {version}" for package, version in machine["versions"].items())
    turns = [turn for result in facts["cases"].values() for side in result["measured"].values() for turn in side]
    foreign = [turn["foreign"] for turn in turns] or [0.0]
    return RecordedRun(
        date,
        commit,
        f"{PEERS} --cases {' '.join(facts['cases'])} --rounds {settings['rounds']}",
        f"{machine['cpus']} CPUs, {machine['machine']}; Python {machine['python']}, {versions}",
        f"other load {statistics.median(foreign):.0%} (median of {len(foreign)} turns), {max(foreign):.0%} at most",
    )


Recorded = TypeVar("Recorded", RecordedFigure, RecordedRatio)


def _key(entry: RecordedFigure | RecordedRatio) -> tuple[str, ...]:
    if isinstance(entry, RecordedFigure):
        return (entry.case, entry.side)
    return (entry.case, entry.ours, entry.peer)


def _replaced(old: Sequence[Recorded], new: Sequence[Recorded]) -> list[Recorded]:
    """Return the old entries, each new one in the place of that with its key."""
    entries = {_key(entry): entry for entry in old}
    entries.update({_key(entry): entry for entry in new})
    return list(entries.values())


def document(text: str, record: BenchmarkRecord, pages: Mapping[str, str]) -> str:
    """Return a page with its tables as the record gives them.

    Args:
        text: The page; tables lie between `<!-- results: CASE -->` and `<!-- end -->`.
        record: The figures.
        pages: For each case the page that has its figures, as a link of docs/benchmarks.md.
    """

    def block(found: re.Match[str]) -> str:
        case = found[2]
        table = overview(record, pages) if case == ALL_CASES else details(record, case)
        return f"{found[1]}\n{table}\n\n{found[3]}"

    return BLOCK.sub(block, text)


def overview(record: BenchmarkRecord, pages: Mapping[str, str]) -> str:
    """Return the tables of all ratios and the list of the runs."""
    peers = [ratio for ratio in record.ratios if record.runs[ratio.run].command.startswith(PEERS)]
    bounds = {(figure.case, figure.side) for figure in record.figures if figure.bound}
    columns = list(dict.fromkeys(_column(ratio, bounds) for ratio in peers))
    columns.sort(key=lambda column: column == "bounds")
    rows: dict[tuple[str, str], dict[str, list[str]]] = {}
    numbers = {name: number for number, name in enumerate(record.runs, start=1)}
    for ratio in peers:
        cells = rows.setdefault((ratio.case, ratio.ours), {})
        cells.setdefault(_column(ratio, bounds), []).append(_cell(ratio, bounds, numbers[ratio.run]))
    lines = _head("case", "ours", *columns)
    for (case, ours), cells in rows.items():
        values = ["; ".join(cells.get(column, [])) for column in columns]
        lines.append(_row(f"[{case}]({pages[case]})", ours.removeprefix("pecan "), *values))
    lines += ["", *_head("subject", "ours", "beside", "of", "ratio", "measured")]
    for ratio in record.ratios:
        if ratio not in peers:
            subject = f"[{ratio.case}]({pages[ratio.case]})"
            lines.append(_row(subject, ratio.ours, ratio.peer, ratio.of, _spread(ratio), ratio.run))
    lines += ["", *_head("", "measured", "commit", "machine", "load", "")]
    for name, run in record.runs.items():
        lines.append(_row(str(numbers[name]), name, run.commit, run.machine, run.load, run.note))
    return "\n".join(lines)


def _column(ratio: RecordedRatio, bounds: Iterable[tuple[str, str]]) -> str:
    return "bounds" if (ratio.case, ratio.peer) in bounds else ratio.peer.partition(", ")[0]


def _cell(ratio: RecordedRatio, bounds: Iterable[tuple[str, str]], number: int) -> str:
    variant = ratio.peer if (ratio.case, ratio.peer) in bounds else ratio.peer.partition(", ")[2]
    return f"{f'{variant} {ratio.ratio:.2f}'.strip()}<sup>{number}</sup>"


def details(record: BenchmarkRecord, case: str) -> str:
    """Return the tables of one case: what each side reached, and the ratios."""
    lines = []
    figures = [figure for figure in record.figures if figure.case == case]
    for unit in dict.fromkeys(figure.unit for figure in figures):
        lines += [*_side_table([figure for figure in figures if figure.unit == unit], unit), ""]
    lines += _head("ours", "beside", "ratio", "of", "measured")
    for ratio in record.ratios:
        if ratio.case == case:
            lines.append(_row(ratio.ours, ratio.peer, _spread(ratio), ratio.of, ratio.run))
    return "\n".join(lines)


def _side_table(figures: Sequence[RecordedFigure], unit: str) -> list[str]:
    whole = any(figure.cpu_us is not None for figure in figures)
    per = "start" if unit == SECONDS else "element"
    columns = ["side", unit, "least to most", *([f"CPU per {per}", "memory (MB)"] if whole else []), "measured"]
    lines = _head(*columns)
    for figure in figures:
        name = f"*{figure.side}* (bound)" if figure.bound else figure.side
        spread = "" if figure.least is None or figure.most is None else f"{figure.least:,} to {figure.most:,}"
        more = [_cpu(figure.cpu_us), str(figure.memory_mb or "")] if whole else []
        lines.append(_row(name, f"{figure.value:,}", spread, *more, figure.run))
    return lines


def _cpu(us: float | None) -> str:
    if us is None:
        return ""
    return f"{us / 1e6:.1f} s" if us >= LONG_US else f"{us:,.0f} µs"


def _spread(ratio: RecordedRatio) -> str:
    if ratio.least is None or ratio.most is None:
        return f"{ratio.ratio:g}"
    return f"{ratio.ratio:.2f} ({ratio.least:.2f} to {ratio.most:.2f})"


def _head(*columns: str) -> list[str]:
    return [_row(*columns), _row(*("---" for _ in columns))]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def written_pages(record: BenchmarkRecord) -> dict[Path, str]:
    """Return all pages with tables, with these as the record gives them."""
    texts = {page: page.read_text() for page in (HEAD, *sorted(PAGES.glob("*.md")))}
    cases = {found[2]: page for page, text in texts.items() for found in BLOCK.finditer(text)}
    links = {case: str(page.relative_to(DOCS)) for case, page in cases.items() if case != ALL_CASES}
    named = {figure.case for figure in record.figures} | {ratio.case for ratio in record.ratios}
    if missing := named - links.keys():
        raise ValueError(f"No page in {PAGES} has a place for {sorted(missing)}: write '<!-- results: CASE -->' there.")
    return {page: document(text, record, links) for page, text in texts.items()}


def main() -> None:
    """Merge runs, and write record and pages."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.document", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--merge", type=Path, metavar="FILE", help="JSON of python -m benchmarks.peers")
    parser.add_argument("--commit", default="unknown", help="commit that was measured")
    parser.add_argument("--date", default=datetime.date.today().isoformat(), help="day of the run (default: today)")
    args = parser.parse_args()
    record = read(RECORD.read_text())
    if args.merge is not None:
        record = merge(record, json.loads(args.merge.read_text()), args.commit, args.date)
    pages = written_pages(record)
    RECORD.write_text(write(record))
    for page, text in pages.items():
        page.write_text(text)


if __name__ == "__main__":
    main()
