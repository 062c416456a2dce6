"""The error budget on a cluster counts elements, also those of which nobody knows how many a broken split held."""

from __future__ import annotations

from pathlib import Path

import pytest

import pecan_ray as pecan
from pecan_ray.errors import ErrorBudgetError
from pecan_ray.quarantine import quarantined
from tests.unit.test_sources_tfrecord import framed

pytestmark = pytest.mark.usefixtures("one_node", "no_actor_left")

FILES, RECORDS = 11, 5000


def torn(folder: Path, records: int = RECORDS, whole: int = FILES - 1) -> pecan.PecanPipeline:
    """Return a pipeline over so many whole files, and one that is broken at its first record."""
    for file in range(whole + 1):
        data = b"".join(framed(b"%d" % number) for number in range(records))
        (folder / f"{file:02}").write_bytes(data if file < whole else b"\0" + data[1:])
    return pecan.PecanPipeline(pecan.sources.TFRecords(folder), name="torn")


def test_5_000_of_55_000_elements_end_the_job(tmp_path: Path) -> None:
    pipe = torn(tmp_path).batch(100)
    with pytest.raises(ErrorBudgetError, match=r"About \d+ elements are left out, estimated by its \d+ bytes") as over:
        list(pipe.iter_batches(on_error="skip", workers=pecan.Workers(1)))
    assert 4900 <= over.value.fields["bad"] <= 5100


@pytest.mark.parametrize(
    ("records", "whole", "bad", "told"),
    [(400, FILES - 1, range(380, 421), "elements are left out, estimated by"), (4, 1, range(1, 9), "left out")],
)
def test_an_estimate_counts_and_is_told_as_one_where_the_bad_are_kept(
    tmp_path: Path, records: int, whole: int, bad: range, told: str
) -> None:
    (tmp_path / "data").mkdir()
    pipe = torn(tmp_path / "data", records, whole)
    pipe = pipe.with_config(error_budget=1.0, quarantine_path=str(tmp_path / "bad.jsonl")).batch(2)
    batches = pipe.iter_batches(on_error="quarantine", workers=pecan.Workers(1))
    assert sum(len(batch["record"]) for batch in batches) == whole * records
    assert batches.report().bad_elements in bad
    (kept,) = quarantined(tmp_path / "bad.jsonl")
    assert kept.elements_left_out == batches.report().bad_elements
    assert told in kept.error
