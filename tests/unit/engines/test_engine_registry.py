"""The engines by name: each is described, offers the same functions, and counts the same."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_args

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.engines.contract import BadElement, EngineModule, EngineOptions
from pecan_ray.engines.counting import EVERY, OpCount
from pecan_ray.engines.in_process import AllLeases
from pecan_ray.engines.registry import ENGINES, build_engine
from pecan_ray.engines.slots import HeapSlots
from pecan_ray.options import EngineName
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.operators import ElementOp
from pecan_ray.sources import Items

OFFERED = [name for name, member in vars(EngineModule).items() if inspect.isfunction(member) and name[0] != "_"]


@pytest.mark.parametrize("name", get_args(EngineName))
def test_every_engine_offers_the_same_functions_and_runs_a_quarantined_element_again(name: EngineName) -> None:
    assert set(ENGINES) == set(get_args(EngineName))
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
    module.replay(ops, BadElement("noted", "", "", {"item": 2.0}), 0)
    assert len(seen) == 1


ROWS = 160


def counted(pipe: pecan.PecanPipeline, epoch: int = 0) -> Mapping[str, OpCount]:
    sources = list(pipe.plan.sources())
    engine = build_engine(pipe.engine, pipe.plan, EngineOptions(count_epoch=0), HeapSlots())
    try:
        rows = sum(produced.rows for produced in engine.batches(AllLeases(sources, epoch, 1)))
        assert rows > 0
        return dict(engine.counts())
    finally:
        engine.close()


def pipeline(engine: EngineName) -> pecan.PecanPipeline:
    source = pecan.sources.Arrays(x=np.ones((ROWS, 8), np.float32), i=np.arange(ROWS), split_rows=20)
    return pecan.PecanPipeline(source, engine=engine)


PLANS: dict[str, Callable[[pecan.PecanPipeline], pecan.PecanPipeline]] = {
    "maps": lambda p: p.map(lambda x: x[:4], on="x", name="cut").map(lambda i: i + 1, on="i", name="next").batch(8),
    "filter": lambda p: p.filter(lambda i: i % 3 == 0, on="i", name="thirds").batch(8),
    "created": lambda p: p.map(lambda e: {**e, "y": e["x"] * 2}, name="twice").batch(8),
    "flat_map": lambda p: p.flat_map(_three, name="three").batch(8),
}


def _three(element: dict[str, Any]) -> Any:
    if isinstance(element["i"], (np.generic, int)):
        return [element, element, element]
    import tensorflow as tf

    return {name: tf.stack([value] * 3) for name, value in element.items()}


@pytest.mark.parametrize("plan", PLANS)
def test_both_engines_count_the_same_in_the_first_epoch_alone(plan: str) -> None:
    pytest.importorskip("tensorflow")
    ours, theirs = (counted(PLANS[plan](pipeline(engine))) for engine in ("python", "tensorflow"))
    assert ours == theirs
    elements = ROWS // EVERY
    assert all(count.elements_in == elements for count in ours.values())
    if plan == "maps":  # sizes are those of all columns
        assert ours["cut"] == OpCount(elements, elements, elements * (8 * 4 + 8), elements * (4 * 4 + 8))
        assert [counted(PLANS[plan](pipeline(engine)), epoch=1) for engine in get_args(EngineName)] == [{}, {}]


def test_a_graph_counts_strings_by_their_lengths() -> None:
    tf = pytest.importorskip("tensorflow")
    pipe = pecan.PecanPipeline(pecan.sources.Items([{"text": "ab" * n} for n in range(16)]), engine="tensorflow")
    found = counted(pipe.map(lambda text: tf.strings.join([text, "!"]), on="text", name="shout").batch(4))
    assert found["shout"].bytes_out == found["shout"].bytes_in + found["shout"].elements_in == 2 * 8 + 2
