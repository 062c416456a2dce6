"""Which jobs the division of the cluster's cache counts as readers of a dataset."""

from __future__ import annotations

from pathlib import Path

from pecan_ray.plan.splits import Split
from pecan_ray.runtime.io_sharing import datasets_of
from pecan_ray.sources import Resampled, TextLines
from tests.unit.job.job_rig import JobRig


def test_a_job_that_draws_some_data_more_often_than_other_data_has_no_dataset(tmp_path: Path) -> None:
    """The model divides by each byte being read once an epoch, which its draws are not."""
    (tmp_path / "lines").write_text("one\n")
    plain = [Split(0, path="s3://data/set/part-0"), Split(1, path="s3://data/set/part-1")]
    drawn = list(Resampled(TextLines(str(tmp_path / "lines")), draws=3).splits())
    for splits, datasets in ((plain, ("s3://data/set",)), (drawn, ())):
        rig = JobRig()
        rig.begin(splits)
        assert datasets_of(rig.job) == datasets
