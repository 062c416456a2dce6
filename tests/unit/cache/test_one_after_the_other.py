"""Order, then what to keep, then where to work: as cheap as the best of all combinations of the three."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations, product

from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.cache import CachePoint, ExecutionProfile, OperatorCost, SourceCost, StoreModel, choose_execution
from pecan_ray.cache.execution import LEAST_GAIN
from pecan_ray.placement.objective import DeploymentEstimate, Objective, rank
from pecan_ray.plan.windows import Deployment
from pecan_ray.reorder import ProfiledOp, auto_order
from tests.long_form import examples
from tests.unit.commuting import any_pair

ELEMENTS, BATCH, SOURCE_BYTES = 10_000, 32, 100_000.0
DEPLOYMENTS = [Deployment(local, remote) for local, remote in product(range(4), range(6)) if local + remote]


def profile_of(ops: Sequence[ProfiledOp], order: Sequence[str], source: SourceCost) -> ExecutionProfile:
    """What an epoch takes in an order, with a point behind the source and one behind the last operator."""
    rates, size = dict[str, tuple[float, float]](), 1.0
    for op in ops:
        rates[op.name] = (op.seconds or 0.0) / size, op.inflation
        size *= op.inflation
    costs, size = list[OperatorCost](), 1.0
    for name in order:
        rate, factor = rates[name]
        costs.append(OperatorCost(name, rate * size, SOURCE_BYTES * size * factor))
        size *= factor
    points = CachePoint("first"), CachePoint("last", behind=order[-1])
    return ExecutionProfile(source, tuple(costs), points, ELEMENTS, splits=100)


def projected(epoch_s: float, step_s: float, disturbs: float, host: float, remote: float) -> list[DeploymentEstimate]:
    """Every deployment, with workers that each take so long for an epoch."""
    worker_s = epoch_s / ELEMENTS * BATCH
    found = []
    for one in DEPLOYMENTS:
        own = step_s * (1 + disturbs * one.local)
        found.append(DeploymentEstimate(one, max(own, worker_s / one.workers), own, host + remote * one.remote))
    return found


seconds, prices = st.floats(1e-4, 1e-1), st.floats(0.05, 20.0)
operators = st.lists(st.tuples(st.floats(0.1, 8.0), seconds), min_size=1, max_size=4)


@examples(150)
@given(
    operators,
    st.builds(SourceCost, seconds=seconds, nbytes=st.just(SOURCE_BYTES), waiting=st.floats(0, 1)),
    st.builds(StoreModel, st.floats(0, 0.1), st.floats(0, 1e-3), st.floats(1e-10, 1e-7), st.floats(0, 1)),
    st.floats(1e-3, 1.0),
    st.floats(0, 0.3),
    prices,
    prices,
)
def test_one_choice_after_the_other_costs_as_little_as_the_best_of_all_combinations(
    drawn: list[tuple[float, float]],
    source: SourceCost,
    store: StoreModel,
    step_s: float,
    disturbs: float,
    host: float,
    remote: float,
) -> None:
    """But for what is not worth a cache: less than 2 % of an epoch, twice."""
    ops = [ProfiledOp(f"op{number}", factor, seconds=took) for number, (factor, took) in enumerate(drawn)]
    names = [op.name for op in ops]

    def dollars(epoch_s: float) -> float:
        best = rank(Objective(), projected(epoch_s, step_s, disturbs, host, remote))[0].projected
        return best.batch_s * best.per_hour

    everything = (
        one.batch_s * one.per_hour
        for order in permutations(names)
        for option in choose_execution(profile_of(ops, order, source), store).options
        for one in projected(option.seconds, step_s, disturbs, host, remote)
    )
    order = auto_order(ops, "safe", commutes=any_pair).order
    choice = choose_execution(profile_of(ops, order, source), store)
    together, in_turn = min(everything), dollars(choice.seconds)
    assert together <= in_turn * (1 + 1e-9)
    assert in_turn <= together * (1 + 3 * LEAST_GAIN) or math.isclose(in_turn, together)
