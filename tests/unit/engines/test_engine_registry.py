"""The engines by name: each is described, offers the same functions, and knows nothing of the others."""

from __future__ import annotations

import inspect
from typing import Any, get_args

import pytest

from pecan_ray.engines.contract import BadElement, EngineModule
from pecan_ray.engines.registry import ENGINES
from pecan_ray.options import EngineName
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.operators import ElementOp
from pecan_ray.sources import Items

OFFERED = [name for name, member in vars(EngineModule).items() if inspect.isfunction(member) and name[0] != "_"]


def test_every_engine_that_a_user_can_name_is_described() -> None:
    assert set(ENGINES) == set(get_args(EngineName))
    assert sorted(OFFERED) == ["build", "run_again", "run_here"]


@pytest.mark.parametrize("name", get_args(EngineName))
def test_every_engine_offers_the_same_functions_and_runs_a_quarantined_element_again(name: EngineName) -> None:
    if ENGINES[name].framework is not None:
        pytest.importorskip(str(ENGINES[name].framework))
    module, seen = ENGINES[name].load(), list[Any]()
    for offered in OFFERED:
        wanted = list(inspect.signature(getattr(EngineModule, offered)).parameters)[1:]
        assert list(inspect.signature(getattr(module, offered)).parameters) == wanted

    def noted(x: float) -> float:
        seen.append(x)
        return x

    plan = PecanPipeline(Items([1.0]), engine=name).map(noted, on="item").plan
    ops = [op for op in plan.ops if isinstance(op, ElementOp)]
    module.run_again(ops, BadElement("noted", "", "", {"item": 2.0}), 0)
    assert len(seen) == 1
