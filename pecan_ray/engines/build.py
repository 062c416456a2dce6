"""From an engine's name to the engine; a framework is imported only when its engine is asked for."""

from __future__ import annotations

import importlib

from pecan_ray.engines.contract import Engine, EngineOptions, Slots
from pecan_ray.options import EngineName
from pecan_ray.plan.operators import Plan


def load_framework(name: EngineName) -> None:
    """Import an engine's framework: before a plan is unpickled, whose functions would import all of it."""
    if name == "tensorflow":
        importlib.import_module("pecan_ray.engines.tensorflow")


def build_engine(name: EngineName, plan: Plan, options: EngineOptions, slots: Slots) -> Engine:
    """Return the engine that runs a plan on this machine."""
    sources = tuple(plan.sources())
    if name == "tensorflow":
        from pecan_ray.engines.tensorflow import TensorFlowEngine

        return TensorFlowEngine(plan, sources, options, slots)
    from pecan_ray.engines.python import PythonEngine

    return PythonEngine(plan, sources, options, slots)
