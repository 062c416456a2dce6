"""The error budget on a cluster counts elements, also those of which nobody knows how many a broken split held."""

from __future__ import annotations

from pathlib import Path

import pytest

import pecan_ray as pecan
from pecan_ray.errors import ErrorBudgetError
from tests.unit.sources.test_sources_tfrecord import framed

pytestmark = pytest.mark.usefixtures("one_node", "no_actor_left")

FILES, RECORDS = 11, 5000


def torn(folder: Path) -> pecan.PecanPipeline:
    """Return a pipeline over whole files, and one that is broken at its first record."""
    for file in range(FILES):
        data = b"".join(framed(b"%d" % number) for number in range(RECORDS))
        (folder / f"{file:02}").write_bytes(data if file < FILES - 1 else b"\0" + data[1:])
    return pecan.PecanPipeline(pecan.sources.TFRecords(folder), name="torn")


@pytest.mark.slow
def test_5_000_of_55_000_elements_end_the_job(tmp_path: Path) -> None:
    pipe = torn(tmp_path).batch(100)
    with pytest.raises(ErrorBudgetError, match=r"About \d+ elements are left out, estimated by its \d+ bytes") as over:
        list(pipe.iter_batches(on_error="skip", workers=pecan.Workers(1)))
    assert 4900 <= over.value.fields["bad"] <= 5100
