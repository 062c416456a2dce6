"""Pecan's Algorithm 1 and its released code on the authors' own traces; `test_placement_decided` shows more steps."""

from __future__ import annotations

import pytest

from pecan_ray.placement import AutoPlacement, Deployment, Window
from tests.unit.placement.plants import Meter, Plant, drive

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


def test_algorithm_1_removes_the_local_worker_that_disturbs_and_the_released_code_keeps_it() -> None:
    plant = Plant(t_model=0.1, t_work=0.25, slowdown=lambda local, _remote: 1 + 0.2 * max(0, local - 3))
    ends = {}
    for mode in ("pecan", "pecan-code"):
        ends[mode] = drive(AutoPlacement(mode=mode), Meter(plant, waiting=False), Deployment(0, 1)).final
    assert ends["pecan"] == Deployment(3, 0)
    assert ends["pecan-code"].local > 3
