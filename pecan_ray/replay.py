"""Running quarantined elements again, in this process, to see whether they still fail."""

from __future__ import annotations

from dataclasses import dataclass

from pecan_ray.engines.contract import BadElement
from pecan_ray.engines.registry import ENGINES
from pecan_ray.errors import OpError, PecanError, PlanError
from pecan_ray.job.suspicion import OP as OF_A_DEAD_PROCESS
from pecan_ray.options import EngineName
from pecan_ray.plan.operators import Plan
from pecan_ray.plan.shape import element_ops_from
from pecan_ray.quarantine import Pickled
from pecan_ray.quarantine import quarantined as quarantined


@dataclass(frozen=True)
class ReplayResult:
    """A quarantined element that was run again."""

    bad: BadElement
    error: BaseException | None
    """What it raised now: the function's own exception where there is one.  None: it does not fail any more."""


def replay(plan: Plan, bad: BadElement, *, engine: EngineName = "python", seed: int = 0) -> ReplayResult:
    """Run the operators of a plan, up to the batching, on one quarantined element.

    The python engine gives functions the random numbers that they had; a graph gets others.  Raises `PlanError` for an
    element that nobody has (`why_without_element`), and for one that is kept as a pickle, which was not read.
    """
    if isinstance(bad.element, Pickled):
        raise PlanError(
            f"{bad.where} is kept as a pickle, which runs code when it is read. If you trust whoever wrote the file, "
            "pass --trust, or quarantined(..., trust=True)."
        )
    if bad.element is None:
        raise PlanError(why_without_element(bad))
    try:
        ops = element_ops_from(plan, bad.origin.branch if bad.origin else 0)
        ENGINES[engine].load().replay(ops, bad, seed)
    except PecanError as error:
        return ReplayResult(bad, error.__cause__ if isinstance(error, OpError) and error.__cause__ else error)
    return ReplayResult(bad, None)


def why_without_element(bad: BadElement) -> str:
    """Say why a quarantined element cannot be run again, and what can be done instead."""
    if bad.op == OF_A_DEAD_PROCESS:
        return (
            f"{bad.where} was not kept, since {bad.error}. To see where, iterate over it alone with debug=True under "
            "`python -X faulthandler`: this process would end too."
        )
    if bad.origin is None:
        return f"{bad.where} was not kept, since it could not be read ({bad.error}): look at the file."
    return f"{bad.where} was not kept: {bad.error}"
