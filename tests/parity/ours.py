"""The chains of the table as pipelines of ours."""

from __future__ import annotations

from typing import Any

import numpy as np

import pecan_ray as pecan
from tests.parity.chains import Chain

Pipe = pecan.PecanPipeline


def draw(element: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**element, "x": rng.random()}


def draw_stateless(element: dict[str, Any], rng: Any) -> dict[str, Any]:
    import tensorflow as tf

    return {**element, "x": tf.random.stateless_uniform([], rng, dtype=tf.float64)}


def is_even(element: dict[str, Any]) -> Any:
    return element["i"] % 2 == 0


def is_negative(element: dict[str, Any]) -> Any:
    return element["i"] < 0


def pipeline(chain: Chain, *, engine: Any = "python", seed: int | None = 7, name: str = "table") -> Pipe:
    kind, arguments = chain.head
    if kind == "rows":
        columns: Any = {arguments["column"]: np.arange(arguments["count"])}
        pipe = Pipe(pecan.sources.Arrays(**columns), engine=engine, seed=seed, name=name)
    else:
        first, *others = (pipeline(one, engine=engine, seed=seed, name=name) for one in arguments["inputs"])
        pipe = first.zip(*others)
    for step, given in chain.steps:
        pipe = _then(pipe, step, given)
    return pipe


def _then(pipe: Pipe, step: str, given: dict[str, Any]) -> Pipe:
    functions = {"even": is_even, "nothing": is_negative}
    if step in functions:
        return pipe.filter(functions[step])
    if step == "noise":
        return pipe.map(draw if pipe.engine == "python" else draw_stateless, name="noise", random=True)
    if step == "cache":
        return pipe.autocache()
    made: Pipe = getattr(pipe, step)(**given)
    return made
