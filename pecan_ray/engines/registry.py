"""The engines by name, and what must be known of each before anything of it is imported."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from pecan_ray.engines.contract import Engine, EngineModule, EngineOptions, Slots
from pecan_ray.options import EngineName
from pecan_ray.plan.operators import Plan


@dataclass(frozen=True)
class EngineInfo:
    """One engine, described."""

    module: str
    """Package with the functions of `EngineModule`; importing it imports the framework."""
    framework: str | None = None
    """What it compiles a plan's functions with, which sees accelerators; None: it calls them as they are."""

    def load(self) -> EngineModule:
        """Import the engine; raises `MissingExtraError` if its framework is not installed."""
        # By name and late: a job with the python engine must not import TensorFlow, which may not be
        # installed.
        return cast(EngineModule, importlib.import_module(self.module))


ENGINES: Mapping[EngineName, EngineInfo] = {
    "python": EngineInfo("pecan_ray.engines.python"),
    "tensorflow": EngineInfo("pecan_ray.engines.tensorflow", framework="tensorflow"),
}


def load_framework(name: EngineName) -> None:
    """Import an engine's framework: before a plan is unpickled, whose functions would import all of it."""
    # TensorFlow's own import goes on without Keras and JAX
    # (docs/decisions/python-engine.md#15-freed-memory-stays-keras-waits); a function that imports it first
    # would import all.
    if ENGINES[name].framework is not None:
        ENGINES[name].load()


def build_engine(name: EngineName, plan: Plan, options: EngineOptions, slots: Slots) -> Engine:
    """Return the engine that runs a plan on this machine."""
    return ENGINES[name].load().build(plan, tuple(plan.sources()), options, slots)
