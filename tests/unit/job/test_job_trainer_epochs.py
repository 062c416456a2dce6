"""The trainer's side of a job whose training loop goes through it epoch by epoch."""

from __future__ import annotations

from pecan_ray.job.trainer_events import BatchWanted, EndOfEpoch, HandOver
from tests.unit.job.test_job_trainer import TrainerRig, of_kind


def test_an_epoch_ends_where_a_batch_of_the_next_one_waits_which_is_not_used_by_that() -> None:
    rig = TrainerRig()
    rig.receive(1, epoch=0)
    rig.receive(1, epoch=1)
    assert [one.batch.id for one in of_kind(HandOver, rig.handle(BatchWanted(within=0)))] == [0]
    ended = rig.handle(BatchWanted(within=0))
    assert of_kind(EndOfEpoch, ended) and not of_kind(HandOver, ended) and rig.state.yielded == 1
    assert [one.batch.id for one in of_kind(HandOver, rig.handle(BatchWanted(within=1)))] == [1]


def test_an_epoch_ends_when_the_job_goes_on_to_the_next_one() -> None:
    rig = TrainerRig()
    assert not of_kind(EndOfEpoch, rig.handle(BatchWanted(within=0))), "batches of it may still come"
    assert of_kind(EndOfEpoch, rig.order(epoch=1))
    assert not of_kind(EndOfEpoch, rig.order(epoch=2)), "it is told once"


def test_a_batch_of_an_epoch_that_is_over_for_the_job_is_used_before_its_end_is_told() -> None:
    rig = TrainerRig()
    rig.receive(1, epoch=0)
    rig.order(epoch=1)
    assert of_kind(HandOver, rig.handle(BatchWanted(within=0)))
    assert of_kind(EndOfEpoch, rig.handle(BatchWanted(within=0)))
