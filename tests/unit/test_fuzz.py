"""Some damaged files of every format, and those that once found something; `make fuzz` reads many more."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fuzz.catalogue import FORMATS
from tests.fuzz.formats import Reading
from tests.fuzz.judge import compare, judge, run_case
from tests.long_form import some_later

KEPT = Path(__file__).parents[1] / "fuzz" / "kept"
FILES = 80
"""So many are read by one test: of a process that ends, or stands still, it is known which of them it was reading."""
FIRST = int(os.environ.get("FUZZ_SEED", "0"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("FUZZ_CASES", str(FILES))))


@pytest.mark.parametrize("seeds", [SEEDS[at : at + FILES] for at in range(0, len(SEEDS), FILES)], ids=str)
@pytest.mark.parametrize("name", some_later(sorted(FORMATS), "tfrecord-gzip", "text-xz"))
def test_damaged_files_lose_nothing_without_a_word(name: str, seeds: range, tmp_path: Path) -> None:
    if name.startswith("tfrecord"):
        pytest.importorskip("tensorflow")
    failures = {seed: run_case(name, seed, tmp_path) for seed in seeds}
    assert {seed: failure for seed, failure in failures.items() if failure is not None} == {}


@pytest.mark.parametrize("path", sorted(KEPT.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_files_that_found_something(path: Path, tmp_path: Path) -> None:
    assert judge(path.parent.name, path.read_bytes(), tmp_path) is None


@pytest.mark.parametrize(
    ("ours", "reference", "kind"),
    [
        (Reading(["a"]), Reading(["a", "b"]), "lost"),
        (Reading(["a"]), Reading(["a"], "cut off"), "untold"),
        (Reading(["a", "c"], "broken"), Reading(["a", "b"]), "different"),
        (Reading(["a", "b"]), Reading(["a"]), "different"),
        (Reading(["a"], "broken"), Reading(["a", "b"]), None),
        (Reading(["a"]), Reading(["a"]), None),
    ],
)
def test_the_judge_finds_what_it_is_for(ours: Reading, reference: Reading, kind: str | None) -> None:
    failure = compare(FORMATS["text"], ours, reference)
    assert (failure and failure.kind) == kind
