"""The rules by which the search tells a stock, a hiccup and a change apart (decision 32), one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from pecan_ray.autoscaler.search import DeploymentLimits
from pecan_ray.placement import Deployment, Prices, Window
from pecan_ray.placement.auto import AutoSearch
from pecan_ray.placement.departures import other_trainer, ran_dry
from pecan_ray.placement.doubts import another_step
from pecan_ray.placement.evidence import pooled
from pecan_ray.placement.knowledge import Knowledge
from pecan_ray.placement.model import AGED, LEAST_SHARE
from pecan_ray.placement.setting import Setting

SETTING = Setting(Prices(4.96, 0.42), clients=1, threshold=0.03)
AT = Deployment(2, 4)


def window(own: float, wait: float = 0.0, batches: int = 100, stderr: float = 0.001) -> Window:
    return Window(own + wait, 0.0, batches, wait_time=wait, stderr=stderr * (own + wait))


def known(measured: Mapping[Deployment, Sequence[Window]]) -> Knowledge:
    job = Knowledge(SETTING)
    for at, windows in measured.items():
        for one in windows:
            job.note(at, one)
    return job


def by_workers(at: Deployment, step: float = 0.1, slow: float = 1.0) -> Window:
    """A window beside workers of which four suffice, each local one disturbs by a hundredth."""
    own = step * (1 + 0.01 * at.local)
    return window(own, max(0.0, 0.4 * slow / at.workers - own))


# --- point 7: a stock runs out once ---------------------------------------------------------------------------


def test_while_a_stock_runs_out_windows_differ_but_not_the_trainers_own_step() -> None:
    before = pooled(AT, [window(0.1)] * 5)
    waits = [0.02, 0.05, 0.1]
    assert ran_dry(before, [window(0.1, wait) for wait in waits], batches=200, most=100, threshold=0.03)
    assert not ran_dry(before, [window(0.12, wait) for wait in waits], batches=200, most=100, threshold=0.03)


def test_the_second_deployment_in_a_row_that_seems_to_have_lived_on_a_stock_is_another_job() -> None:
    """Workers three times slower just after the choice: those measured before are not visited in turn."""
    remote = {1: 0.3, **dict.fromkeys(range(4, 10), 0.0)}
    job = known({Deployment(0, count): [window(0.1, wait)] * 3 for count, wait in remote.items()})
    search = AutoSearch(SETTING, job).run(Deployment(0, 4), DeploymentLimits(0, 64))
    visited, move = list[int](), next(search)
    while move.target.remote < 12:
        visited.append(move.target.remote)
        assert len(visited) < 12, visited
        move = search.send(window(0.1, max(0.0, 1.2 / move.target.remote - 0.1), batches=40))
    assert set(visited) <= {4, 5, 11}


# --- point 8: a job may change while it is being searched -----------------------------------------------------


def test_beside_the_same_workers_another_step_is_another_trainer() -> None:
    before, after = [window(0.1)] * 2, [window(0.3)] * 2
    assert other_trainer(AT, [*before, *after], 0.03) == after
    assert other_trainer(AT, [*before, window(0.1, 0.3), window(0.1, 0.3)], 0.03) == (), "a stock, or slower workers"
    assert other_trainer(AT, [*before, *after[:1]], 0.03) == (), "a hiccup"


@pytest.mark.parametrize(("step", "local", "changed"), [(0.15, 0, True), (0.135, 4, False), (0.112, 1, True)])
def test_a_step_that_no_disturbance_explains_is_another_jobs(step: float, local: int, changed: bool) -> None:
    job = known({AT: [window(0.1)] * 3})
    there, seen = Deployment(AT.local + local, AT.remote - 1), [window(step)] * 2
    for one in seen:
        job.note(there, one)
    assert another_step(job, job.reading(there), seen) is changed


def test_a_change_before_the_next_deployment_runs_begins_the_search_again() -> None:
    """Nothing that was measured before counts any more, and local workers disturb no more than they did.

    Of a trainer that may run ahead nobody could tell: the wait beside the first worker would hide the longer step.
    """
    moves = AutoSearch(SETTING, found := Knowledge(SETTING)).run(Deployment(1, 0), DeploymentLimits(4, 8))
    found.shows_its_step = True
    before = next(moves).target
    move = moves.send(by_workers(before))
    after, windows = move.target, 0
    while move.target == after:
        windows += 1
        assert windows <= 10
        move = moves.send(by_workers(after, step=0.3))
    assert before not in found and after in found
    assert found.prior is not None and found.prior.interference < 0.05


def test_a_change_while_a_deployment_is_measured_begins_the_search_again() -> None:
    moves = AutoSearch(SETTING, found := Knowledge(SETTING)).run(Deployment(0, 1), DeploymentLimits(0, 8))
    before = next(moves).target
    move = moves.send(by_workers(before))
    after, windows = move.target, 0
    while move.target == after and before in found:
        step = 0.1 if windows < 2 else 0.3
        windows += 1
        assert windows <= 10
        move = moves.send(window(step, stderr=0.05))
    assert before not in found
    assert [one.batch_time for one in found.windows(after)] == pytest.approx([0.3] * (windows - 2))


# --- what was taken for a change, and is none -----------------------------------------------------------------


def test_what_was_known_is_taken_back_before_another_change_is_believed() -> None:
    """A trainer three times slower for two windows, and no longer beside the next workers."""
    few, many = Deployment(0, 2), Deployment(0, 4)
    found = known({at: [by_workers(at)] * 3 for at in (few, many, Deployment(0, 8))})
    moves = AutoSearch(SETTING, found).run(many, DeploymentLimits(0, 8))
    move = next(moves)
    for _ in range(20):
        move = moves.send(by_workers(move.target))
    assert (move.target, move.settled) == (many, True)
    for _ in range(2):
        move = moves.send(by_workers(move.target, step=0.4))
    assert move.target != many
    windows = 0
    while move.target != many:
        windows += 1
        assert windows <= 3
        move = moves.send(by_workers(move.target))
    assert Deployment(0, 8) in found


def test_what_belongs_to_another_job_teaches_nothing_of_this_one() -> None:
    """The step beside one local worker more is 2.5 times as long: a local worker does not disturb by 150 %."""
    job = known({at: [by_workers(at)] * 3 for at in (Deployment(1, 3), Deployment(0, 4))})
    there, seen = Deployment(2, 2), [window(0.25)] * 2
    for one in seen:
        job.note(there, one)
    job.retract(there, seen)
    job.start_over(there, seen, AGED)
    assert job.prior is not None and job.prior.interference < 0.05
    assert job.reading(there).batch_time == pytest.approx(0.25)


def test_once_a_change_is_taken_back_what_was_measured_meanwhile_is_kept() -> None:
    old, new, third = Deployment(0, 4), Deployment(0, 3), Deployment(0, 2)
    job = known({at: [by_workers(at)] * 3 for at in (old, Deployment(0, 8))})
    job.start_over(old, [window(0.3)] * 2, AGED)
    for at in (new, third):
        foreseen = job.foreseen(at)
        job.note(at, by_workers(at, step=0.3 if at == new else 0.1))
        assert job.recall(at, foreseen) is (at == third)
    assert {reading.deployment for reading in job.readings()} == {old, new, third, Deployment(0, 8)}
    assert job.reading(old).batch_time == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("audit", "settled", "again"), [(False, False, False), (False, True, True), (True, False, True)]
)
def test_what_was_taken_back_is_believed_the_next_time_unless_it_was_none_for_long(
    audit: bool, settled: bool, again: bool
) -> None:
    """An audit is no change, so that none was taken back by it."""
    at, other = Deployment(0, 4), Deployment(0, 2)
    job = known({one: [by_workers(one)] * 3 for one in (at, other)})

    def taken_back() -> bool:
        foreseen = job.foreseen(other)
        job.note(other, by_workers(other))
        return job.recall(other, foreseen)

    job.start_over(at, [window(0.4)] * 2, AGED, changed=not audit)
    assert taken_back()
    if settled:
        job.settle(at, [by_workers(at)] * 5)
    job.start_over(at, [window(0.4)] * 2, AGED)
    assert taken_back() is again


def test_a_vague_forecast_takes_a_change_back_if_the_new_one_is_much_worse() -> None:
    """The step without local workers was known to 15 %, and is off by 14 %; the change foretold a threefold one."""
    job = known({Deployment(local, 4): [window(0.1 * (1 + 0.02 * local), stderr=0.05)] for local in (8, 16)})
    then, at = job.foreseen(Deployment(0, 4)), Deployment(0, 4)
    assert then is not None and then.own_sd > 0.05 * then.own
    job.start_over(Deployment(8, 4), [window(0.35)] * 2, AGED)
    foreseen = job.foreseen(at)
    job.note(at, window(then.own + 1.5 * then.own_sd))
    assert job.recall(at, foreseen)


# --- point 9: what is believed once measurements have aged ----------------------------------------------------


def test_aged_measurements_leave_the_average_disturbance_as_a_share_of_the_step() -> None:
    job = known({Deployment(local, 4): [window(0.1 * (1 + 0.03 * local))] * 3 for local in (0, 2, 4, 8)})
    prior = job.explanations()[0].learned(Deployment(8, 4), AGED)
    assert prior.interference == pytest.approx(0.03 / 1.24, rel=0.2)


def test_a_worker_that_brought_nothing_is_believed_to_be_a_fifth_of_one_of_the_other_kind() -> None:
    """A prior near zero with a relative deviation can never be left."""
    useless = {Deployment(local, 2): [window(0.1, 0.1)] * 3 for local in (0, 2, 4)}
    prior = known(useless).explanations()[0].learned(Deployment(4, 2), AGED)
    assert prior.local >= LEAST_SHARE * prior.remote > 0
