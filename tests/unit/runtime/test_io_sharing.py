"""Which jobs the division of the cluster's cache counts as readers of a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pecan_ray.plan.splits import Split
from pecan_ray.runtime.io_sharing import datasets_of
from pecan_ray.sources import Resampled, TextLines
from tests.unit.job.job_rig import JobRig


def datasets(splits: Sequence[Split]) -> tuple[str, ...] | None:
    """Return the datasets of a job that has listed these splits."""
    rig = JobRig()
    rig.begin(splits)
    return datasets_of(rig.job)


def test_a_job_that_draws_some_data_more_often_than_other_data_has_no_dataset(tmp_path: Path) -> None:
    """The model divides by each byte being read once an epoch, which its draws are not."""
    (tmp_path / "lines").write_text("one\n")
    assert datasets([Split(0, path="s3://data/set/part-0"), Split(1, path="s3://data/set/part-1")]) == (
        "s3://data/set",
    )
    drawn = Resampled(TextLines(str(tmp_path / "lines")), draws=3)
    assert datasets(list(drawn.splits())) == ()
