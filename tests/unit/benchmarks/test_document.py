"""The tables of docs/benchmarks.md are what their record gives, and a new run replaces what it measured."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks import document
from benchmarks.document import BenchmarkRecord, merge, read, write, written_pages
from benchmarks.peers.cases import CASES
from benchmarks.peers.harness import CaseResult, PeerSettings
from benchmarks.peers.judgement import Measurement
from benchmarks.peers.table import as_json

RECORD = read(document.RECORD.read_text())


def result(key: str, **rates: float) -> CaseResult:
    """A case that was measured in one round."""
    case = next(case for case in CASES if case.key == key)
    names = {"ours": "pecan python", "grain": "Grain", "threads": "threads", "torch": "torch DataLoader"}
    measured = {names[name]: [Measurement(0, rate, cpu_s=1e-3, memory=2 << 20)] for name, rate in rates.items()}
    return CaseResult(case, measured)


def merged(*results: CaseResult) -> BenchmarkRecord:
    facts = json.loads(json.dumps(as_json(results, PeerSettings(), 0.15)))
    return merge(RECORD, facts, "abc1234", "2027-01-02")


def test_a_new_run_replaces_the_figures_that_it_measured_and_no_others() -> None:
    record = merged(result("audio", ours=200.0, grain=100.0))
    new = [ratio for ratio in record.ratios if ratio not in RECORD.ratios]
    assert [(each.case, each.peer, each.ratio, each.run) for each in new] == [
        ("audio", "Grain", 2.0, "2027-01-02 abc1234")
    ]
    assert len(record.ratios) == len(RECORD.ratios)
    sides = {each.side: each for each in record.figures if each.run == new[0].run}
    assert sides.keys() == {"pecan python", "Grain"}
    assert (sides["Grain"].value, sides["Grain"].unit, sides["Grain"].cpu_us) == (100, "clips/s", 1000)
    assert read(write(record)) == record
    page = written_pages(record)[document.HEAD]
    audio = next(line for line in page.splitlines() if line.startswith("| [audio]"))
    assert f"2.00<sup>{len(record.runs)}</sup>" in audio and "1.46<sup>1</sup>" in audio
    assert "| 2027-01-02 abc1234 | abc1234 |" in page
    facts = as_json([result("audio", ours=2.0, grain=1.0)], PeerSettings(), 0.15)
    summary = facts["cases"]["audio"]["summary"]
    summary["pecan python, before"] = summary["pecan python"]
    with pytest.raises(ValueError, match=r"audio: 'pecan python, before' is no side"):
        merge(RECORD, facts, "abc1234", "2027-01-02")


def test_the_pages_have_the_tables_that_the_record_gives_with_every_case_and_its_run() -> None:
    stale = [page.name for page, text in written_pages(RECORD).items() if page.read_text() != text]
    assert stale == [], "run python -m benchmarks.document"
    assert write(RECORD) == document.RECORD.read_text()
    assert {each.run for each in RECORD.figures} | {each.run for each in RECORD.ratios} == set(RECORD.runs)
    assert {case.key for case in CASES} <= {ratio.case for ratio in RECORD.ratios}
    with pytest.raises(ValueError, match=r"No page in .* has a place for \['elsewhere'\]"):
        written_pages(replace(RECORD, ratios=[replace(RECORD.ratios[0], case="elsewhere")]))
