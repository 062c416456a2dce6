"""Running quarantined elements again, in this process, to see whether they still fail."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pecan_ray.engines.contract import BadElement
from pecan_ray.engines.registry import ENGINES
from pecan_ray.errors import OpError, PecanError, PlanError
from pecan_ray.options import EngineName
from pecan_ray.plan.operators import Plan
from pecan_ray.plan.shape import element_ops_from


@dataclass(frozen=True)
class Replayed:
    """A quarantined element that was run again."""

    bad: BadElement
    error: BaseException | None
    """What it raised now: the function's own exception where there is one.  None: it does not fail any more."""


def quarantined(path: str | Path) -> Iterator[BadElement]:
    """Yield the elements of a quarantine file.

    The file is a sequence of pickles: read only those that you trust.  Raises `PlanError` if there is no such file, or
    if it holds something else.
    """
    try:
        with open(path, "rb") as file:
            while file.peek(1):
                bad = pickle.load(file)
                if not isinstance(bad, BadElement):
                    raise PlanError(f"{path} is no quarantine file: it holds a {type(bad).__name__}.")
                yield bad
    except OSError as error:
        raise PlanError(f"cannot read the quarantine file {path}: {error}") from error
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError) as error:
        raise PlanError(
            f"{path} is no complete quarantine file ({type(error).__name__}: {error}). Where its elements are objects "
            "of modules of your own, these must be importable."
        ) from error


def replay(plan: Plan, bad: BadElement, *, engine: EngineName = "python", seed: int = 0) -> Replayed:
    """Run the operators of a plan, up to the batching, on one quarantined element.

    The python engine gives functions the random numbers that they had; a graph gets others.  Raises `PlanError` for an
    element that was never read: mend or replace its file instead.
    """
    if bad.element is None:
        raise PlanError(f"{bad.where} was not kept, since it could not be read ({bad.error}): look at the file.")
    try:
        ops = element_ops_from(plan, bad.origin.branch if bad.origin else 0)
        ENGINES[engine].load().run_again(ops, bad, seed)
    except PecanError as error:
        return Replayed(bad, error.__cause__ if isinstance(error, OpError) and error.__cause__ else error)
    return Replayed(bad, None)
