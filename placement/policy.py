"""AutoPlacement: how many workers run beside the trainers and how many on other nodes.

Mode "auto" is the controller of `pecan_ray.placement.control`, which looks at the job twice a second.  The other modes
are those of the papers, each a search by windows of batches; with its prices,

    cost of a batch = batch time * (c_a n_a + c_w n_w)                                          (Pecan §5.1)

They share what is below: bounds, prices, and how workers leave.  Every figure names its mode.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from pecan_ray.autoscaler.policy import CACHEW_CODE
from pecan_ray.autoscaler.search import PATIENCE, DeploymentLimits, SearchDriver
from pecan_ray.errors import PlanError
from pecan_ray.options import Visitation
from pecan_ray.placement.algorithm1 import pecan
from pecan_ray.placement.baselines import collocated, fastflow, remote_only
from pecan_ray.placement.control import begin, control
from pecan_ray.placement.looks import Observation
from pecan_ray.placement.objective import COST, NO_WAIT, Objective
from pecan_ray.placement.released import released
from pecan_ray.placement.setting import SearchMaker, Setting
from pecan_ray.placement.trial_history import ControlState
from pecan_ray.plan.prices import GCP_TPU_V2, Prices
from pecan_ray.plan.windows import Decision, Deployment, Removal, Window

SEARCHES: Mapping[str, SearchMaker] = {
    "pecan": pecan,
    "pecan-code": released,
    "pecan-cost": partial(released, by_cost=True),
    "cachew": remote_only,
    "cachew-code": partial(remote_only, rule=CACHEW_CODE),
    "collocated": collocated,
    "fastflow": fastflow,
}
"""The papers' modes."""
MODES = ("auto", *SEARCHES)
# Cachew §4.3: metrics over 100 batches are smooth enough. Pecan's Table 4 compares 100, 500 and 1,000.
WINDOW_BATCHES = {"auto": 100, "cachew": 100, "cachew-code": 100}
"""Batches of a window where it is not Pecan's X = 500; those of "auto" are for reports only."""
Heard: TypeAlias = tuple[Window, Deployment] | DeploymentLimits
"""What a paper's search has heard: what ran and how, or other bounds."""


class AutoPlacement:
    """Decides what shall run.  Pure: no clock, no IO; equal inputs give equal decisions.

    Counts are totals over all clients: `spread_by_power` deals local workers out.  Bounds hold for every decision.
    Mode "auto" is asked by `look`, the papers' modes by `decide`.
    """

    def __init__(
        self,
        mode: str = "auto",
        prices: Prices = GCP_TPU_V2,
        clients: int = 1,
        threshold: float = 0.03,
        max_local: int = 16,
        max_remote: int = 64,
        *,
        min_local: int = 0,
        min_remote: int = 0,
        max_per_hour: float | None = None,
        max_local_cpu_fraction: float | None = None,
        host_cpus: float | None = None,
        cpus_per_worker: float = 1.0,
        visitation: Visitation = "exactly_once",
        fast_removal: bool = False,
        patience: int = PATIENCE,
        objective: Objective = COST,
        priced: bool = True,
    ) -> None:
        """`objective`: of mode "auto", which takes COST without the user's prices for NO_WAIT.

        `priced`: the prices are the user's, and mode "auto" counts them.
        """
        if mode not in MODES:
            raise PlanError(f"mode must be one of {', '.join(map(repr, MODES))}, but got {mode!r}.")
        limits = DeploymentLimits(max_local, max_remote, min_local, min_remote)
        self.setting = Setting(prices, clients, threshold)
        self._max_per_hour = math.inf if max_per_hour is None else max_per_hour
        limits = within_budget(limits, self.setting, self._max_per_hour)
        limits = within_cpus(limits, clients, max_local_cpu_fraction, host_cpus, cpus_per_worker)
        if mode.startswith("cachew") and limits.max_remote < 1:
            raise PlanError(f"mode {mode!r} runs remote workers only, but none is allowed: raise max_remote.")
        if mode == "collocated" and limits.max_local < 1:
            raise PlanError("mode 'collocated' runs local workers only, but none is allowed: raise max_local.")
        self.mode = mode
        self.limits = limits
        self.start = limits.clamp(1, 0) if mode in ("auto", "collocated", "fastflow") else limits.clamp(0, 1)
        """What to launch before anything was measured: one worker where the mode looks first."""
        self.window_batches = WINDOW_BATCHES.get(mode, 500)
        """Batches that a window should hold."""
        # Decision 126: without prices nobody has named the money that the trainer's time could be traded for.
        self.objective = NO_WAIT if mode == "auto" and objective == COST and not priced else objective
        self.within = limits
        """Bounds for now: not above `limits`."""
        self.state = ControlState()
        """Of mode "auto"."""
        self._patience, self._removal = patience, how_to_remove(fast_removal, visitation)
        self._last: Decision | None = None
        self._begin_search()

    def _begin_search(self) -> None:
        self._started = self.within
        self._observed: list[Heard] = []
        """What a search has heard since it began: it is a generator, and is made again from this."""
        self._driver = self._new_driver()

    def _new_driver(self) -> SearchDriver | None:
        if self.mode not in SEARCHES:
            return None
        search = partial(SEARCHES[self.mode], self.setting)
        return SearchDriver(search, self._started, patience=self._patience, removal=self._removal)

    def __getstate__(self) -> dict[str, Any]:
        # Decision 37: a search is a generator, which cannot be written down.
        # It is made again from what it has heard, so equal inputs must give equal decisions.
        return {name: value for name, value in vars(self).items() if name != "_driver"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._driver = self._new_driver()
        for one in self._observed:
            assert self._driver is not None
            if isinstance(one, DeploymentLimits):
                self._driver.restrict(one)
            else:
                self._driver.decide(*one)

    @property
    def converged(self) -> bool:
        """Return whether the numbers have settled; it goes on watching."""
        if self._driver is not None:
            return self._driver.converged
        return self._last is not None and self._last.phase == "converged"

    def affordable_remote(self) -> int:
        """Return how many remote workers the budget pays for, by the nodes that those which run are on."""
        return affordable(self.limits, self.setting, self._max_per_hour)

    def first(self, row_s: float | None, batch: int, room: int) -> Deployment:
        """Return what mode "auto" begins with, where a sample has told the seconds of a row, and CPUs are free."""
        local = begin(row_s, batch, min(room, self.within.max_local))
        return self.within.clamp(max(local, self.start.local), self.start.remote)

    def look(self, o: Observation, now: float) -> Decision:
        """Return what shall run by mode "auto"; it is asked about twice a second, `now` in seconds since the start."""
        if self.mode != "auto":
            raise PlanError(f"mode {self.mode!r} decides by windows: use decide(window, deployment).")
        transfer = self.setting.prices.row_transfer(o.remote_row_bytes)
        self.setting = replace(self.setting, paid=o.paid, batch_transfer=transfer * o.grain)
        # The share is for sums of floats.
        overpaid = sum(o.paid) > (1 + 1e-9) * self.setting.prices.remote_per_hour(len(o.paid))
        most, least = self.within, Deployment(self.within.min_local, self.within.min_remote)
        room = Deployment(min(o.room.local, most.max_local), min(o.room.remote, most.max_remote))
        by_price = self.objective == COST
        per_hour = (lambda remote: self.setting.per_hour(Deployment(0, remote))) if by_price else None
        seen = replace(o, room=room, least=least, overpaid=overpaid, row_transfer=transfer)
        decision, self.state = control(self.state, seen, now, per_hour)
        self._last = replace(decision, removal=self._removal)
        return self._last

    def decide(self, window: Window, deployment: Deployment) -> Decision:
        """Return what shall run next by a paper's mode; `deployment` is what ran during the window."""
        if self._driver is None:
            raise PlanError(
                "mode 'auto' decides by what is seen of the job, not by windows: use look(observation, now)."
            )
        self._observed.append((window, deployment))
        return self._driver.decide(window, deployment)

    def restrict(self, local: int | None = None, remote: int | None = None) -> DeploymentLimits:
        """Have no more workers than these for now, besides what bounds it anyway; None: not bounded further.

        One worker remains in any case.  Returns the bounds that hold now.
        """
        most = self.limits
        max_local = most.max_local if local is None else min(most.max_local, local)
        max_remote = most.max_remote if remote is None else min(most.max_remote, remote)
        if not max_local + max_remote:
            # Other jobs may leave nothing over; a job without any worker would stand still for good.
            max_local, max_remote = min(1, most.max_local), int(not most.max_local)
        max_local, max_remote = max(max_local, most.min_local), max(max_remote, most.min_remote)
        self.within = DeploymentLimits(max_local, max_remote, most.min_local, most.min_remote)
        if self._driver is not None:
            self._observed.append(self.within)
            self._driver.restrict(self.within)
        return self.within

    def restart_search(self) -> None:
        """Forget everything: another search begins where the job is."""
        self.state = ControlState()
        self._begin_search()


def within_budget(limits: DeploymentLimits, setting: Setting, max_per_hour: float) -> DeploymentLimits:
    """Lower the bound on remote workers so that an hour costs no more than the budget."""
    least = setting.prices.per_hour(setting.clients, limits.min_remote)
    if least > max_per_hour:
        raise PlanError(
            f"max_per_hour=${max_per_hour:.2f} does not pay for {setting.clients} trainer hosts and "
            f"{limits.min_remote} remote workers, which cost ${least:.2f} an hour: raise the budget to that at least."
        )
    return replace(limits, max_remote=affordable(limits, setting, max_per_hour))


def affordable(limits: DeploymentLimits, setting: Setting, max_per_hour: float) -> int:
    """Return how many remote workers a budget pays for, within limits."""
    numbers = range(limits.min_remote + 1, limits.max_remote + 1)
    # 1e-12: a budget that is exactly the bill of n workers must pay for n.
    budget = max_per_hour * (1 + 1e-12)
    return limits.min_remote + bisect_right(
        numbers, budget, key=lambda remote: setting.prices.per_hour(setting.clients, remote, setting.paid)
    )


def within_cpus(
    limits: DeploymentLimits, clients: int, fraction: float | None, host_cpus: float | None, cpus_per_worker: float
) -> DeploymentLimits:
    """Lower the bound on local workers so that they use no more than a share of the CPUs of the trainers' hosts."""
    if fraction is None:
        return limits
    if host_cpus is None:
        raise PlanError("max_local_cpu_fraction needs host_cpus, the CPUs of one trainer's host.")
    # The little more is for floats: a share that is exact in decimals must not lose a worker.
    fit = clients * math.floor(fraction * host_cpus / cpus_per_worker + 1e-9)
    return replace(limits, max_local=min(limits.max_local, fit))


def how_to_remove(fast_removal: bool, visitation: Visitation) -> Removal:
    """Return how workers leave: at once only where data may be dropped (Pecan §5.1, fast worker removal)."""
    if fast_removal and visitation == "exactly_once":
        raise PlanError(
            'fast_removal=True drops what a removed worker holds, which visitation="exactly_once" forbids: '
            'use visitation="at_most_once" or leave fast_removal off.'
        )
    return "fast" if fast_removal else "drain"
