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
        first, column = arguments["first"], arguments["column"]
        columns: Any = {column: np.arange(first, first + arguments["count"])}
        pipe = Pipe(pecan.sources.Arrays(**columns), engine=engine, seed=seed, name=name)
    else:
        inputs = [pipeline(one, engine=engine, seed=seed, name=name) for one in arguments["inputs"]]
        pipe = _joined(kind, *inputs)
    for step, given in chain.steps:
        pipe = _then(pipe, step, given)
    return pipe


def _joined(kind: str, *inputs: Pipe) -> Pipe:
    if kind == "mix":
        return inputs[0].mix(*inputs[1:], weights=[1.0] * len(inputs), stop="first")
    return inputs[0].zip(*inputs[1:]) if kind == "zip" else inputs[0].concat(*inputs[1:])


def _then(pipe: Pipe, step: str, given: dict[str, Any]) -> Pipe:
    functions = {"even": is_even, "nothing": is_negative}
    if step in functions:
        return pipe.filter(functions[step])
    if step == "noise":
        return pipe.map(draw if pipe.engine == "python" else draw_stateless, name="noise", random=True)
    if step == "cache":
        return pipe.autocache()
    if step == "unbatch":
        return pipe.unbatch(same_rows=True)
    if step == "split":
        share = given["share"]
        library: Any = pecan
        parts: list[Pipe] = library.split(pipe, [share, 1 - share], seed=3)
        return parts[int(given["part"])]
    made: Pipe = getattr(pipe, step)(**given)
    return made
