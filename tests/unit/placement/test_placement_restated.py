"""A policy whose controller was started again goes on as it would have, and repeats few of its windows for it."""

from __future__ import annotations

import pickle

import pytest

from pecan_ray.placement import AutoPlacement, Decision, Deployment
from pecan_ray.placement.policy import MODES, MOST_TOLD
from tests.long_form import some_later
from tests.unit.placement.plants import Meter, random_plant

WINDOWS = 400


def decisions(mode: str, seed: int, restart_every: int | None) -> tuple[list[Decision], AutoPlacement, int]:
    """Let a policy run beside a trainer that becomes twice as fast; return what it decided, and its longest story."""
    plant = random_plant(seed)
    policy = AutoPlacement(mode, plant.prices, max_local=plant.max_local, max_remote=plant.max_remote)
    meter = Meter(plant, seed=seed, noise=0.02, stalls=0.05)
    at, found, longest = policy.start, [], 0
    for number in range(WINDOWS):
        if restart_every is not None and number % restart_every == restart_every - 1:
            policy = pickle.loads(pickle.dumps(policy))
        if number == WINDOWS // 2:
            policy.restrict(remote=max(1, plant.max_remote // 2))
        found.append(policy.decide(meter.window(at), at))
        at = found[-1].target
        longest = max(longest, len(policy._told))
    return found, policy, longest


@pytest.mark.parametrize("mode", sorted(MODES))
@pytest.mark.parametrize("seed", some_later(range(2), 1))
def test_a_policy_that_is_stored_now_and_then_decides_as_one_that_is_not(mode: str, seed: int) -> None:
    whole, _, longest = decisions(mode, seed, None)
    pieces, _, _ = decisions(mode, seed, 37)
    assert pieces == whole
    assert longest < 2 * MOST_TOLD, "what it was told is forgotten where it watches"


def test_what_is_stored_of_a_policy_does_not_grow_with_its_windows() -> None:
    _, policy, _ = decisions("auto", 1, None)
    assert policy.converged
    at = Deployment(0, 1)
    sizes = []
    for _ in range(5):
        for _ in range(2 * MOST_TOLD):
            at = policy.decide(Meter(random_plant(1), seed=1).window(at), at).target
        sizes.append(len(pickle.dumps(policy)))
    assert max(sizes) < 1.5 * min(sizes)
