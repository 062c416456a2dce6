"""The error budget on a cluster counts elements, also those of which nobody knows how many a broken split held."""

from __future__ import annotations

from pathlib import Path

import pytest

import pecan_ray as pecan
from pecan_ray.errors import ErrorBudgetError
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


def test_an_estimate_is_told_as_one_in_the_report(tmp_path: Path) -> None:
    pipe = torn(tmp_path, 400).with_config(error_budget=1.0).batch(100)
    batches = pipe.iter_batches(on_error="skip", workers=pecan.Workers(1))
    assert sum(len(batch["record"]) for batch in batches) == (FILES - 1) * 400
    report = batches.report()
    assert 380 <= report.bad_elements <= 420
    (told,) = [event.text for event in report.events if event.kind == "bad"]
    assert "elements are left out, estimated by" in told


def test_where_nothing_is_known_the_report_says_at_least(tmp_path: Path) -> None:
    pipe = torn(tmp_path, 4, whole=0).with_config(error_budget=1.0).batch(2)
    batches = pipe.iter_batches(on_error="skip", workers=pecan.Workers(1))
    assert list(batches) == []
    (told,) = [event.text for event in batches.report().events if event.kind == "bad"]
    assert "At least 1 left out" in told
