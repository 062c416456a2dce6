"""Does an operator depend on its element alone, or on what another one has left behind?

A mask's flip that follows the image's through a variable gives the same result twice in a row; but not after the
image of the *next* element was flipped, or not.  So each operator is run again on an element when all have run on
the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pecan_ray.autoorder.element_spec import equal
from pecan_ray.autoorder.op_runner import OP_FAILURES, OpRunner, Stage, Token
from pecan_ray.autoorder.sample import Sampled

ELEMENTS = 12
"""Elements on which this is tried: of two that draw a flip or none, half differ."""


class _Passed:
    """What each operator was given of one element, and what it made of it."""

    def __init__(self, runner: OpRunner, stages: Sequence[Stage], token: Token) -> None:
        self.given: list[list[Token]] = []
        self.made: list[list[dict[str, Any]]] = []
        pieces = [runner.fresh(token)]
        for stage in stages:
            self.given.append([runner.fresh(piece) for piece in pieces])
            pieces = [output for piece in pieces for output in stage(piece)]
            self.made.append([dict(runner.columns(runner.fresh(piece))) for piece in pieces])


def find_shared_state(sampled: Sampled) -> None:
    """Mark the operators of a sampled stretch whose results depend on more than their element."""
    runner = sampled.runner
    names = sampled.stretch.names
    suspects = {name for name in names if not (sampled.tallies[name].draws or sampled.tallies[name].stateful)}
    if runner.traced or len(names) < 2 or not suspects:
        return
    stages = runner.stages(names)
    before: _Passed | None = None
    for token in sampled.held[:ELEMENTS]:
        if not sampled.in_time():
            return
        try:
            now = _Passed(runner, stages, token)
            if before is not None:
                _compare(sampled, stages, before, suspects)
        except OP_FAILURES:
            return
        before = now


def _compare(sampled: Sampled, stages: Sequence[Stage], passed: _Passed, suspects: set[str]) -> None:
    runner = sampled.runner
    # The last one first: whatever an earlier one leaves behind is still that of the other element.
    for stage, given, made in reversed(list(zip(stages, passed.given, passed.made, strict=True))):
        (name,) = stage.names
        if name not in suspects:
            continue
        again = [runner.columns(output) for piece in given for output in stage(piece)]
        if not equal(made, again):
            sampled.tallies[name].stateful = True
            suspects.discard(name)
