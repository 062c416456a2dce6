"""Pecan's Algorithm 1 and its released code, against the figures of the paper and the authors' own traces.

The plants are fitted: which numbers went in and which came out is said in each test.
"""

from __future__ import annotations

import pytest

from pecan_ray.placement import AutoPlacement, Deployment, Prices, Window
from tests.unit.placement.plants import Meter, Plant, drive

TPU_V2 = Prices(accelerator_host=4.96, remote_worker=0.42)

Trace = list[tuple[int, int, float]]
"""Local workers, remote workers, milliseconds a batch: what ran in each window."""

RESNET_PECAN: Trace = [
    *[(0, n + 1, ms) for n, ms in enumerate([399, 196, 132, 99.7, 80.8, 65.7, 56.7, 50.2, 45.2, 39.3, 37.5, 34.8])],
    (0, 13, -20.9),
    (0, 13, 38.7),
    *[(n + 1, 12, ms) for n, ms in enumerate([39.3, 39.4, 39.5, 39.4, 26.6, 39.4])],
    *[(6, 11, 39.3), (7, 11, 39.0), (8, 11, 39.4), (9, 11, 52.6), (9, 10, 39.1), (10, 10, 39.0)],
    *[(10, n, ms) for n, ms in [(9, 39.2), (8, 39.0), (7, 41.3), (6, 39.1), (5, 39.3), (4, 39.0), (3, 48.8)]],
]
"""The authors' run of ResNet50 with Pecan: 33 windows, of which one is negative."""
RETINA_PECAN: Trace = [
    (0, 1, 583),
    (0, 2, -94.7),
    (0, 2, 345),
    (0, 3, 349),
    *[(n, 2, 345 + n % 4 * 2) for n in range(1, 11)],
    (10, 1, 346),
    (10, 0, 347),
]


def replay(policy: AutoPlacement, trace: Trace) -> list[Deployment]:
    """Feed the windows of a trace; return what the policy asked for after each."""
    return [policy.decide(Window(ms / 1000, 1.0, 500), Deployment(local, remote)).target for local, remote, ms in trace]


@pytest.mark.parametrize(
    ("trace", "end"),
    [(RESNET_PECAN, Deployment(10, 4)), (RETINA_PECAN, Deployment(10, 0))],
    ids=["resnet", "retinanet"],
)
def test_the_released_code_takes_every_step_of_the_authors_traces(trace: Trace, end: Deployment) -> None:
    """Nothing is fitted: after each of the windows the policy asks for what ran in the next one."""
    policy = AutoPlacement(mode="pecan-code", max_local=10, max_remote=20)
    asked = replay(policy, trace)
    ran = [Deployment(local, remote) for local, remote, _ in trace]
    assert asked == [*ran[1:], end]
    assert policy.converged


def test_algorithm_1_ends_where_the_released_code_ended_only_if_stalls_are_not_taken_for_contention() -> None:
    """On the same first windows the paper's rule leaves local worker 5 in (26.6 ms is better), and goes on."""
    policy = AutoPlacement(mode="pecan", max_local=10, max_remote=20)
    asked = replay(policy, RESNET_PECAN[:20])
    assert asked[13] == Deployment(1, 12)
    # bpt_conv is 34.8 ms, measured while buffers filled: already the first local worker looks 13 % worse.
    assert asked[14] == Deployment(0, 11)


def figure_7() -> Plant:
    """ResNet50 v2-8 with AutoOrder, fitted to Figure 7: 12 remote, 5 local, 8 remote, 8 local, 0 remote.

    Fitted: the speed of a remote worker (12 are enough, 13 superfluous), of a local one (8 alone are enough, to 6 %),
    how much receiving slows local workers down (with 8 remote 5 are just enough), and from where on a local worker
    disturbs the trainer (5 beside 12 remote, 8 otherwise).
    """
    return Plant(
        t_model=1.0,
        t_work=1.0,
        speed_r=0.088,
        local_supply=lambda local, remote: 0.118 * local * (1 - 0.0632 * remote),
        slowdown=lambda local, remote: 1 + 0.06 * max(0.0, local + 0.75 * max(0, remote - 8) - 8.5),
        max_local=10,
        max_remote=20,
        prices=TPU_V2,
    )


def test_algorithm_1_trades_remote_for_local_workers_in_the_rounds_of_figure_7() -> None:
    policy = AutoPlacement(mode="pecan", prices=TPU_V2, max_local=10, max_remote=20)
    run = drive(policy, Meter(figure_7(), waits=False, batches=500), Deployment(0, 1))
    moves = run.moves
    assert moves[:13] == [Deployment(0, count) for count in range(1, 14)], "scales out until 13 are no better than 12"
    assert moves[13:19] == [Deployment(count, 12) for count in range(1, 7)], "the sixth local worker disturbs"
    assert moves[19:24] == [Deployment(5, count) for count in (11, 10, 9, 8, 7)], "without the eighth it costs more"
    assert moves[24:28] == [Deployment(count, 8) for count in (6, 7, 8, 9)]
    assert moves[28:36] == [Deployment(8, count) for count in range(7, -1, -1)]
    assert run.final == Deployment(8, 0) and run.converged


@pytest.mark.parametrize(
    ("cachew", "remote", "local", "host", "saved"),
    [(19, 5, 9, 4.96, 0.44), (12, 5, 5, 4.96, 0.33), (30, 27, 9, 8.80, 0.14)],
    ids=["ResNet50 v2-8", "SimCLR", "ResNet50 v3-8"],
)
def test_algorithm_1_replaces_the_remote_workers_of_section_6_2(
    cachew: int, remote: int, local: int, host: float, saved: float
) -> None:
    """Fitted: one remote worker (from Cachew's count), one local one (from both counts), the local workers that the
    host bears (Pecan's count), and how much shorter the epochs became (5.2 % SimCLR, 8 % ResNet50 v3-8, as told).
    Predicted: that the algorithm stops within one remote worker of the paper's mean, and the saving.  For ResNet50
    v2-8 it stops at 4, not 5: the fifth saves less time (5.6 %) than it costs (5.9 %)."""
    prices = Prices(host, 0.42)
    speed_r = 1 / (cachew - 0.02)
    plant = Plant(
        t_model=1.0,
        t_work=1.0,
        speed_r=speed_r,
        speed_l=(1 - (remote - 0.02) * speed_r) / local,
        slowdown=lambda count, _remote: 1 + 0.1 * max(0, count - local),
        prices=prices,
    )
    policy = AutoPlacement(mode="pecan", prices=prices)
    run = drive(policy, Meter(plant, waits=False, batches=500), Deployment(0, 1))
    assert max(at.remote for at in run.moves if at.local == 0) == cachew + 1
    assert run.converged and run.final.local == local and abs(run.final.remote - remote) <= 1
    faster = {0.44: 0.0, 0.33: 0.052, 0.14: 0.08}[saved]
    ours = 1 - (1 - faster) * plant.cost(run.final) / plant.cost(Deployment(0, cachew))
    assert ours == pytest.approx(saved, abs=0.04)


def test_it_starts_again_when_the_measurements_move() -> None:
    plant = Plant(t_model=0.1, t_work=0.6, max_local=2)
    policy = AutoPlacement(mode="pecan", max_local=2)
    before = drive(policy, Meter(plant, waits=False), Deployment(0, 1), after=40)
    assert before.final == Deployment(2, 4)
    slower_workers = Plant(t_model=0.1, t_work=1.0, max_local=2)
    after = drive(policy, Meter(slower_workers, waits=False), before.final, after=60)
    assert after.final == Deployment(2, 8)
    faster_workers = Plant(t_model=0.1, t_work=0.4, max_local=2)
    last = drive(policy, Meter(faster_workers, waits=False), after.final, after=60)
    assert last.final == Deployment(2, 2), "the batch time is the same, but the queue has grown"


def test_the_released_code_never_looks_again() -> None:
    policy = AutoPlacement(mode="pecan-code", max_local=2)
    before = drive(policy, Meter(Plant(t_model=0.1, t_work=0.6), waits=False), Deployment(0, 1))
    after = drive(policy, Meter(Plant(t_model=0.1, t_work=2.0), waits=False), before.final, after=100)
    assert after.final == before.final


def test_algorithm_1_removes_the_local_worker_that_disturbs_and_the_released_code_keeps_it() -> None:
    plant = Plant(t_model=0.1, t_work=0.25, slowdown=lambda local, _remote: 1 + 0.2 * max(0, local - 3))
    ends = {}
    for mode in ("pecan", "pecan-code"):
        ends[mode] = drive(AutoPlacement(mode=mode), Meter(plant, waits=False), Deployment(0, 1)).final
    assert ends["pecan"] == Deployment(3, 0)
    assert ends["pecan-code"].local > 3
