"""AutoPlacement: how many workers run beside the trainers and how many on other nodes, so that a batch costs least.

    cost of a batch = batch time * (c_a n_a + c_w n_w)                                          (Pecan §5.1)

One interface, several searches: `mode` names the algorithm, and every figure names its mode.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from pecan_ray.autoscaler.search import PATIENCE, DeploymentLimits, Pilot
from pecan_ray.errors import PlanError
from pecan_ray.options import Visitation
from pecan_ray.placement.algorithm1 import pecan
from pecan_ray.placement.auto import auto
from pecan_ray.placement.auto_settings import DEFAULT_SETTINGS, AutoSettings
from pecan_ray.placement.baselines import cachew_code, cachew_paper, collocated, fastflow
from pecan_ray.placement.evidence import Reading
from pecan_ray.placement.objective import COST, Objective
from pecan_ray.placement.pool import Worth, worth_measured
from pecan_ray.placement.released import pecan_code, pecan_cost
from pecan_ray.placement.setting import FIXED, Aim, SearchMaker, Setting
from pecan_ray.plan.prices import GCP_TPU_V2, Prices
from pecan_ray.plan.windows import Decision, Deployment, Removal, Window

MODES: dict[str, SearchMaker] = {
    "auto": auto,
    "pecan": pecan,
    "pecan-code": pecan_code,
    "pecan-cost": pecan_cost,
    "cachew": cachew_paper,
    "cachew-code": cachew_code,
    "collocated": collocated,
    "fastflow": fastflow,
}
WINDOW_BATCHES = {"auto": 100, "cachew": 100, "cachew-code": 100}
"""Batches of a window where it is not Pecan's X = 500; `auto` puts windows together until they suffice."""
MOST_TOLD = 100
"""After so many windows a search that watches is restated, and not made again from them: that takes 0.1 s of CPU."""
Told: TypeAlias = tuple[Window, Deployment] | DeploymentLimits | Objective
"""What a search is told while it goes on: what ran and how, other bounds, or what is looked for."""


class AutoPlacement:
    """Decides by measured windows what shall run.  Pure: no clock, no IO; equal windows give equal decisions.

    Counts are totals over all clients: `spread_local` deals local workers out.  Bounds hold for every decision; if
    less comes than was asked for (`patience` windows long), it settles for that and says so.

    Hints for a start near the answer: `expected_workers`, of whatever kind (`expected_workers(...)` computes it from
    the rates of the trainer and of one worker), or `expected_remote`, remote ones alone.
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
        expected_workers: int | None = None,
        expected_remote: int | None = None,
        fixed: Deployment = FIXED,
        visitation: Visitation = "exactly_once",
        fast_removal: bool = False,
        settle_windows: int = 0,
        patience: int = PATIENCE,
        settings: AutoSettings = DEFAULT_SETTINGS,
        objective: Objective = COST,
        priced: bool = True,
    ) -> None:
        """`settings` and `objective` are those of our own search, mode "auto".

        `priced`: the prices are the user's, so that dollars are told.
        """
        if mode not in MODES:
            raise PlanError(f"mode must be one of {', '.join(map(repr, MODES))}, but got {mode!r}.")
        if not isinstance(prices, Prices):
            raise PlanError(f"prices must be Prices(accelerator_host=..., remote_worker=...), but got {prices!r}.")
        if isinstance(clients, bool) or not isinstance(clients, int) or clients < 1:
            raise PlanError(f"clients must be a whole number >= 1, but got {clients!r}.")
        if not 0 <= threshold < 1:
            raise PlanError(f"threshold must be a share in [0, 1), but got {threshold!r}.")
        limits = DeploymentLimits(max_local, max_remote, min_local, min_remote)
        limits = within_budget(limits, prices, clients, max_per_hour)
        limits = within_cpus(limits, clients, max_local_cpu_fraction, host_cpus, cpus_per_worker)
        check_side(mode, limits)
        start = first_deployment(mode, limits, expected_workers, expected_remote)
        hinted = expected_workers is not None or expected_remote is not None
        if objective != COST and mode != "auto":
            raise PlanError(f"mode {mode!r} knows no other objective than cost: use mode='auto'.")
        expected = start if hinted else None
        setting = Setting(prices, clients, threshold, expected, fixed, settings, Aim(objective), priced)
        self.mode = mode
        self.prices = prices
        self.clients = clients
        self.limits = limits
        self.start = start
        """What to launch before anything was measured."""
        self.window_batches = WINDOW_BATCHES.get(mode, 500)
        """Batches that a window should hold."""
        self._setting = setting
        self._within = limits
        """Bounds for now: not above `limits`."""
        self._manner = (settle_windows, patience, how_to_remove(fast_removal, visitation))
        self._begin_search()

    def _begin_search(self) -> None:
        self._began = (self._within, self._setting.aim.objective)
        self._told: list[Told] = []
        """What the search was told since it began, or was restated: it is a generator, and is made again from this."""
        self._restated = b""
        """How the search goes on where it watches: its state before all that it was told since."""
        settle_windows, patience, removal = self._manner
        self._pilot = Pilot(
            MODES[self.mode](self._setting),
            self._within,
            settle_windows=settle_windows,
            patience=patience,
            removal=removal,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_pilot"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        told, now = self._told, (self._within, self._setting.aim.objective)
        if self._restated:
            self._setting, pilot = pickle.loads(self._restated)
            self._pilot = Pilot.of_told(pilot)
        else:
            self._within, self._setting.aim.objective = self._began
            self._begin_search()
        for one in told:
            if isinstance(one, DeploymentLimits):
                self._pilot.restrict(one)
            elif isinstance(one, tuple):
                self._pilot.decide(*one)
            else:
                self._setting.aim.objective = one
        self._told = told
        self._within, self._setting.aim.objective = now

    @property
    def converged(self) -> bool:
        """Whether the search is over; it goes on watching."""
        return self._pilot.converged

    @property
    def needs_more_data(self) -> bool:
        """Whether an epoch that ends now should go on with the splits of the next one, so that the search can finish.

        Bounded; whoever extends an epoch reports the data that it repeats.
        """
        return self._pilot.needs_more_data

    def aim(self, objective: Objective) -> None:
        """Look for something else from now on: what is left until a deadline changes while a job runs."""
        if objective != self._setting.aim.objective:
            self._setting.aim.objective = objective
            self._told.append(objective)

    @property
    def objective(self) -> Objective:
        """What it looks for."""
        return self._setting.aim.objective

    def per_hour(self, deployment: Deployment) -> float:
        """Return the weight of an hour: in dollars, where the prices are the user's."""
        return self._setting.per_hour(deployment)

    def decide(self, window: Window, deployment: Deployment) -> Decision:
        """Return what shall run next; `deployment` is what ran during the window."""
        self._told.append((window, deployment))
        decision = self._pilot.decide(window, deployment)
        if len(self._told) >= MOST_TOLD and self._pilot.at_bookmark:
            self._restated = pickle.dumps((self._setting, self._pilot.told()))
            self._told.clear()
        return decision

    def restrict(self, local: int | None = None, remote: int | None = None) -> DeploymentLimits:
        """Have no more workers than these for now, besides what bounds it anyway; None: not bounded further.

        One worker remains in any case.  Returns the bounds that hold now.
        """
        most = self.limits
        max_local = most.max_local if local is None else min(most.max_local, local)
        max_remote = most.max_remote if remote is None else min(most.max_remote, remote)
        if not max_local + max_remote:
            max_local, max_remote = min(1, most.max_local), int(not most.max_local)
        max_local, max_remote = max(max_local, most.min_local), max(max_remote, most.min_remote)
        self._within = DeploymentLimits(max_local, max_remote, most.min_local, most.min_remote)
        self._told.append(self._within)
        self._pilot.restrict(self._within)
        return self._within

    def worth(self, readings: Sequence[Reading], here: Deployment, placement: str) -> Worth:
        """Return what the first, second ... worker of a placement is worth beside the others that run `here`."""
        most = self.limits.max_local if placement == "local" else self.limits.max_remote
        return worth_measured(readings, self._setting, here, placement, most)

    def expect(self, workers: int) -> Deployment:
        """Begin with so many workers, which a sample lets expect, in place of one; nothing was measured yet."""
        most = self._within
        expected = first_deployment(self.mode, most, workers, None)
        self._setting = replace(self._setting, expected=expected)
        self._begin_search()
        return expected

    def start_anew(self) -> None:
        """Forget everything: the next window begins another search, where the job is."""
        self._setting = replace(self._setting, expected=None)
        self._begin_search()


def within_budget(
    limits: DeploymentLimits, prices: Prices, clients: int, max_per_hour: float | None
) -> DeploymentLimits:
    """Lower the bound on remote workers so that an hour costs no more than the budget."""
    if max_per_hour is None:
        return limits
    least = prices.per_hour(clients, limits.min_remote)
    if not max_per_hour >= least:
        raise PlanError(
            f"max_per_hour=${max_per_hour:.2f} does not pay for {clients} trainer hosts and {limits.min_remote} remote "
            f"workers, which cost ${least:.2f} an hour: raise the budget to that at least."
        )
    affordable, too_many = limits.min_remote, limits.max_remote + 1
    while too_many - affordable > 1:
        middle = (affordable + too_many) // 2
        if prices.per_hour(clients, middle) <= max_per_hour * (1 + 1e-12):
            affordable = middle
        else:
            too_many = middle
    return DeploymentLimits(limits.max_local, affordable, limits.min_local, limits.min_remote)


def within_cpus(
    limits: DeploymentLimits, clients: int, fraction: float | None, host_cpus: float | None, cpus_per_worker: float
) -> DeploymentLimits:
    """Lower the bound on local workers so that they use no more than a share of the CPUs of the trainers' hosts."""
    if not 0 < cpus_per_worker < math.inf:
        raise PlanError(f"cpus_per_worker must be positive, but got {cpus_per_worker!r}.")
    if fraction is None:
        return limits
    if not 0 <= fraction <= 1:
        raise PlanError(f"max_local_cpu_fraction must be a share in [0, 1], but got {fraction!r}.")
    if host_cpus is None or not 0 < host_cpus < math.inf:
        raise PlanError(f"max_local_cpu_fraction needs host_cpus, the CPUs of one trainer's host, got {host_cpus!r}.")
    fit = clients * math.floor(fraction * host_cpus / cpus_per_worker + 1e-9)
    return DeploymentLimits(min(limits.max_local, fit), limits.max_remote, limits.min_local, limits.min_remote)


def check_side(mode: str, limits: DeploymentLimits) -> None:
    """Refuse a mode whose only kind of worker is not allowed."""
    if mode.startswith("cachew") and limits.max_remote < 1:
        raise PlanError(f"mode {mode!r} runs remote workers only, but no remote worker is allowed: raise max_remote.")
    if mode == "collocated" and limits.max_local < 1:
        raise PlanError("mode 'collocated' runs local workers only, but no local worker is allowed: raise max_local.")


def first_deployment(mode: str, limits: DeploymentLimits, workers: int | None, remote: int | None) -> Deployment:
    """Return what to launch first: what is expected, else one worker where the mode looks first."""
    if workers is not None and remote is not None:
        raise PlanError("give expected_workers or expected_remote, not both.")
    for name, value in (("expected_workers", workers), ("expected_remote", remote)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise PlanError(f"{name} must be a whole number >= 1, but got {value!r}.")
    if workers is not None:
        local = 0 if mode != "auto" else min(workers, limits.max_local)
        return limits.clamp(local, workers - local)
    if remote is not None:
        return limits.clamp(0, remote)
    return limits.clamp(1, 0) if mode in ("auto", "collocated", "fastflow") else limits.clamp(0, 1)


def how_to_remove(fast_removal: bool, visitation: Visitation) -> Removal:
    """Return how workers leave: at once only where data may be dropped (Pecan §5.1, fast worker removal)."""
    if fast_removal and visitation == "exactly_once":
        raise PlanError(
            'fast_removal=True drops what a removed worker holds, which visitation="exactly_once" forbids: '
            'use visitation="at_most_once" or leave fast_removal off.'
        )
    return "fast" if fast_removal else "drain"


def expected_workers(trainer_rate: float, worker_rate: float) -> int:
    """Return n_w = E[t_model] / E[t_worker] (Pecan §5.1), rounded up.

    Batches per second: of the trainer on batches that are there at once, and of one worker.
    """
    for name, rate in (("trainer_rate", trainer_rate), ("worker_rate", worker_rate)):
        if not 0 < rate < math.inf:
            raise PlanError(f"{name} must be a positive number of batches per second, but got {rate!r}.")
    return max(1, math.ceil(min(trainer_rate / worker_rate, 1e9) - 1e-9))
