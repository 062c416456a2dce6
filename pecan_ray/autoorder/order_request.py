"""What AutoOrder is asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, get_args

from pecan_ray.errors import PlanError
from pecan_ray.options import Config, EngineName
from pecan_ray.plan.operators import Plan
from pecan_ray.reorder import Mode

Check: TypeAlias = Callable[[dict[str, Any], dict[str, Any]], Any]
"""A user's test: an element as the user's order makes it and as another one does; False refuses the other order."""


@dataclass(frozen=True)
class OrderRequest:
    """A plan whose order is asked for, how it is run, and how large a sample of it may become."""

    plan: Plan
    engine: EngineName = "python"
    mode: Mode = "cost"
    seed: int = 0
    """What its random numbers are derived from."""
    elements: int = 300
    """The most elements of the sample."""
    seconds: float = 20.0
    """The longest time for the sample and the trials on it."""
    check: Check | None = None
    skip_bad: bool = False
    """Elements that operators cannot take are left out of the sample; else they end it."""
    sample_all: bool = False
    """Sample stretches in which nothing can move too."""

    def __post_init__(self) -> None:
        if not isinstance(self.elements, int) or isinstance(self.elements, bool) or self.elements < 1:
            raise PlanError(f"a sample needs at least 1 element, but got elements={self.elements!r}.")
        if not self.seconds > 0:
            raise PlanError(f"a sample needs some time, but got seconds={self.seconds!r}.")
        if self.mode not in get_args(Mode):
            raise PlanError(f"mode must be one of {', '.join(map(repr, get_args(Mode)))}, but got {self.mode!r}.")

    @classmethod
    def under(cls, config: Config, plan: Plan, engine: EngineName, seed: int) -> OrderRequest:
        """Return what a pipeline asks under its settings."""
        return cls(
            plan,
            engine,
            config.reorder,
            seed,
            config.sample_elements,
            config.sample_seconds,
            config.reorder_check,
        )
