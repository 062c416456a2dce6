"""The user's order of a plan that runs in another one: for elements that fail in that, and then for all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeAlias

from pecan_ray.errors import PecanError
from pecan_ray.plan.op_sequences import Names, element_run, element_runs
from pecan_ray.plan.operators import ElementOp, Plan

RunOrders: TypeAlias = dict[tuple[int, ...], Names]
"""The operators' names of each run of a plan, by its place."""


def run_order_of(plan: Plan) -> RunOrders:
    """Return the order of every run of operators on elements."""
    return {run.place: tuple(op.name for op in run.ops) for run in element_runs(plan)}


class UsersOrder:
    """The plan as the user wrote it, beside the one that an engine runs; any thread may use it.

    It is loaded when it is first needed: functions can hold much.
    """

    def __init__(self, plan: Plan, orders: RunOrders, load: Callable[[], Plan]) -> None:
        """`orders`: what `run_order_of` tells of the user's plan."""
        self._running, self._run_order, self._load = plan, orders, load
        self._lock = threading.Lock()
        """Guards the plan and what is said."""
        self._plan: Plan | None = None
        self.taken = False
        """Whether the engine is to run this order from now on."""
        self.reason = ""
        """Why it does, in words; empty as long as no element has failed in the other order alone."""

    @property
    def plan(self) -> Plan:
        """The plan as the user wrote it."""
        with self._lock:
            if self._plan is None:
                self._plan = self._load()
            return self._plan

    def ops(self, run: Sequence[ElementOp]) -> tuple[ElementOp, ...]:
        """Return the operators that stand in this plan where consecutive ones of the other do."""
        # Orders differ within runs alone, so a run is found in the other plan by its place.
        place = element_run(self._running, run[0].name).place
        return next(other.ops for other in element_runs(self.plan) if other.place == place)

    def is_changed(self, run: Sequence[ElementOp]) -> bool:
        """Tell whether consecutive operators of the other plan stand here in another order, or are others."""
        place = element_run(self._running, run[0].name).place
        return self._run_order[place] != tuple(op.name for op in run)

    def behind_source(self, run: Sequence[ElementOp]) -> bool:
        """Tell whether the elements that some operators are given are those of a source, as it gives them."""
        return element_run(self._running, run[0].name).behind_source

    def take(self, where: str, error: PecanError, run: Sequence[ElementOp]) -> None:
        """Note that an element has failed in the other order and not in this one, which is run from now on."""
        self.go_back(failed_in_order(where, error, run, self.ops(run)))

    def go_back(self, message: str) -> None:
        """Note why this order is run from now on."""
        with self._lock:
            # The first reason stays: what fails later may only follow from going back.
            self.reason = self.reason or message
            self.taken = True


def led_to(error: PecanError) -> str:
    """Say that an order has led to an error of which it is not known whether the user's would."""
    return f"AutoOrder's order of operators led to this: {error.message} The job goes back to your order"


def failed_in_order(where: str, error: PecanError, run: Sequence[ElementOp], users: Sequence[ElementOp]) -> str:
    """Say that an element fails in one order of some operators and not in the user's."""
    return (
        f"{where} fails in AutoOrder's order {_to_str(run)} ({error.message.splitlines()[0]}), but not in yours, "
        f"{_to_str(users)}: the job goes back to your order"
    )


def _to_str(ops: Sequence[ElementOp]) -> str:
    return " -> ".join(op.name for op in ops)
