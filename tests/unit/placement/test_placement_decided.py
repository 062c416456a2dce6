"""Decisions on where workers run, in cases drawn at random, written down: a change to one shows what it changes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest

from pecan_ray.autoscaler import Autoscaler, ScalingRule
from pecan_ray.autoscaler.search import DeploymentLimits
from pecan_ray.placement import AutoPlacement, Prices, PriceTier
from pecan_ray.placement.cut import LinkCosts, TailOp, choose_cut
from pecan_ray.placement.looks import Observation
from pecan_ray.placement.objective import COST, NO_WAIT, DeploymentEstimate, Objective, rank
from pecan_ray.placement.policy import SEARCHES
from pecan_ray.placement.pool import Demand, estimate_worker_value, shares
from pecan_ray.placement.setting import Setting
from pecan_ray.placement.spread import spread_by_power
from pecan_ray.placement.trial_history import Known
from pecan_ray.plan.windows import Deployment, Window
from tests.unit.placement.fluid import Fluid, Run
from tests.unit.placement.plants import Meter, random_plant
from tests.unit.refused import refusal, refused_fields

WRITTEN = Path(__file__).with_name("decided.txt")
"""A paragraph for each case; `python -m tests.unit.placement.test_placement_decided` writes all anew."""
PHASE_S = 120.0
"""After so long the trainer's demand is another one."""


def drawn(draw: random.Random) -> Fluid:
    """Draw a job, and what its looks say besides."""
    room = draw.choice((Deployment(16, 0), Deployment(4, 24), Deployment(8, 64), Deployment(1, 24), Deployment(0, 24)))
    demands = draw.sample((0.0, 700.0, 1500.0, 2600.0, 4000.0, 6000.0, 60_000.0), 3)
    exponent, crowded = draw.choice((1.0, 1.0, 0.7)), draw.choice((math.inf, math.inf, room.local // 2))
    dollars = draw.choice((None, (4.96, 0.42), (1.0, 1.0), (10.0, 0.1)))
    job = Fluid(
        demand=lambda now: demands[min(2, int(now / PHASE_S))],
        local=lambda count: 500.0 * count**exponent,
        shared=draw.choice((math.inf, math.inf, 1800.0)),
        room=room,
        queue=draw.choice((2.0, 6.0, 1000.0)),
        row_s=draw.choice((0.002, 0.0005, None)),
        lag=lambda local: 0.2 if local > crowded else 0.0,
        drift=draw.choice((0.0, 0.05)),
        per_hour=dollars and (lambda remote: dollars[0] + dollars[1] * remote),
    )
    least = Deployment(min(2, room.local), min(3, room.remote))
    others: list[Callable[[Observation, float], Observation]] = [
        lambda o, _: o,
        lambda o, _: replace(o, required_rate=2000.0),
        lambda o, _: replace(o, grain=256.0),
        lambda o, _: replace(o, threads=(2.0, 4.0)),
        lambda o, _: replace(o, own_s=0.0007),
        lambda o, _: replace(o, busy_waiting=0.5),
        lambda o, _: replace(o, least=least),
    ]
    return replace(job, seen=draw.choice(others), disturbance=draw.choice((0.0, 0.0, 0.04)))


def job(seed: int) -> Iterator[str]:
    """Yield what is decided for a job: other workers, and each reason to keep those that there are."""
    run, kept = Run(drawn(random.Random(seed)), seed), set[str]()
    while run.now < 3 * PHASE_S:
        before = run.requested
        decision = run.heed(run.look())
        if decision.target != before:
            kept.clear()
        if decision.reason not in kept and "too little was seen" not in decision.reason:
            yield f"{run.now:.1f} s, {decision.phase}: {decision.reason}"
        kept.add(decision.reason)


def search(seed: int) -> Iterator[str]:
    """Yield how each phase of a paper's mode begins, beside workers that become faster and then slower."""
    plant, mode = random_plant(seed), list(SEARCHES)[seed % len(SEARCHES)]
    policy = AutoPlacement(mode, plant.prices, max_local=plant.max_local, max_remote=12)
    at, phase = policy.start, ""
    yield f"{mode}: {policy.window_batches} batches a window, from {at}"
    for number in range(150):
        speed = 0.5 if number > 100 else 3.0 if number > 60 else 1.0
        meter = Meter(replace(plant, t_work=plant.t_work / speed), seed=150 * seed + number, noise=0.01)
        decision = policy.decide(meter.window(at), at)
        if decision.phase != phase:
            yield f"{number}, {decision.phase}: {decision.reason}"
        at, phase = decision.target, decision.phase


def cut(seed: int) -> Iterator[str]:
    """Yield where pipelines are cut that make large rows of smaller ones."""
    draw = random.Random(seed)
    for _ in range(8):
        sizes = [draw.choice((1e3, 5e4, 150_528.0, 550_000.0)) for _ in range(draw.randint(1, 2))] + [602_112.0]
        ops = [TailOp(f"op{n}", *bounds, 10 ** draw.uniform(-5, -2.5)) for n, bounds in enumerate(pairwise(sizes))]
        link = LinkCosts(draw.choice((125e6, 1.25e9, 12.5e9)), *draw.choice(((), (0.02, 0.4, 5.0), (0.0, 0.4, 5.0))))
        found = choose_cut(ops, link, always=draw.random() < 0.2)
        yield f"before operator {found.first} of {len(ops)}: {found.why}"


def pool(seed: int) -> Iterator[str]:
    """Yield what workers are worth to jobs, how many each may have, and on which hosts they are."""
    draw, demands = random.Random(seed), dict[str, Demand]()
    for name in "abcd"[: draw.randint(2, 4)]:
        rates = draw.choice(((200.0, 0.0), (0.0, 150.0), (200.0, 300.0), (200.0, 150.0)))
        prices, transfer = Prices(draw.choice((0.0, 2.0, 10.0)), 0.1), draw.choice((0.0, 0.5))
        setting = Setting(prices, draw.randint(1, 2), 0.03, batch_transfer=transfer)
        known = Known(each=rates, step_s=draw.choice((0.1, 0.5)))
        here, side = Deployment(draw.randint(0, 3), draw.randint(0, 3)), draw.choice(("local", "remote"))
        worth = estimate_worker_value(known, 100, setting, here, side, 6)
        saved = ", ".join(f"{one:.3g}" for one in worth.cost_reductions)
        slower = ", ".join(f"{one:.3g}" for one in worth.time_factor)
        yield f"{name}, {side} beside {here}: saves ${saved}; so many times slower before: {slower}"
        holds, least, cpus = draw.randint(0, 2), draw.randint(0, 1), draw.choice((1.0, 1.0, 2.0))
        demands[name] = Demand(name, worth.cost_reductions, holds, least, cpus, worth.time_factor)
    yield from (f"{cpus} CPUs: {shares(demands, cpus)}" for cpus in (3, 7, 12))
    power = [draw.choice((8.0, 32.0, 96.0)) for _ in range(3)]
    yield f"7 workers on {power}: {spread_by_power(7, power)}"


def ranking(seed: int) -> Iterator[str]:
    """Yield deployments in the order in which they are preferred."""
    draw, prices = random.Random(seed), Prices(4.96, 0.42, (PriceTier("spot", 0.12, 2), PriceTier("reserved", 0.3, 1)))
    options = []
    for remote in draw.sample(range(6), 4):
        batch_s, waits = draw.uniform(0.1, 0.2), draw.choice((0.1, 0.01, None))
        windows = [
            Window(batch_s * draw.uniform(0.95, 1.05), 1.0, 100, waits and waits * batch_s, stderr=0.01)
            for _ in range(draw.randint(1, 3))
        ]
        dollars = prices.per_hour(1, remote, (0.42,) * draw.randint(0, remote))
        options.append(DeploymentEstimate.of(Deployment(1, remote), windows, dollars))
    for name, objective in {"cost": COST, "no wait": NO_WAIT, "a deadline": Objective(longest_s=0.15)}.items():
        yield f"{name}:"
        for one in rank(objective, options):
            seen, wait = one.projected, one.wait_share
            waited = "unknown" if wait is None else f"{wait:.1%}"
            measured = f"{seen.deployment}: {seen.batch_s:.4g} s (+- {seen.error:.2g}) at ${seen.per_hour:.4g} an hour"
            yield f"  {measured}, {one.cost_increase:+.2%}, waits {waited}{', ' if one.miss else ''}{one.miss}"


def refusals(_: int) -> Iterator[str]:
    """Yield which nonsense is refused of prices, workers, windows, rules and autoscalers."""
    tier = PriceTier("spot", 0.1, 4)
    yield from refused_fields([Prices(4.96, 0.42), tier, Deployment(1, 1), DeploymentLimits(4, 4), ScalingRule()])
    yield refusal(lambda: Prices(4.96, 0.42, (tier, tier)))
    made: Any = Autoscaler
    for name, wrong in product(("threshold", "max_workers", "min_workers", "patience"), (-1, 0, math.nan)):
        yield f"Autoscaler({name}={wrong}): {refusal(partial(made, **{name: wrong})) or 'taken'}"


KINDS: dict[Callable[[int], Iterator[str]], int] = {job: 24, search: 14, cut: 3, pool: 5, ranking: 2, refusals: 1}
CASES = [(kind, seed) for kind, count in KINDS.items() for seed in range(count)]


def decided(kind: Callable[[int], Iterator[str]], seed: int) -> str:
    """Return what is decided in a case."""
    return "\n".join((f"{kind.__name__} {seed}", *kind(seed)))


@pytest.mark.parametrize(
    "number", range(len(CASES)), ids=lambda number: f"{CASES[number][0].__name__} {CASES[number][1]}"
)
def test_what_is_decided_in_a_case_is_what_is_written_down(number: int) -> None:
    assert decided(*CASES[number]) == WRITTEN.read_text().strip().split("\n\n")[number]


if __name__ == "__main__":
    WRITTEN.write_text("\n\n".join(decided(*case) for case in CASES) + "\n")
