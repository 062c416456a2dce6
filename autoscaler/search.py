"""A search as a coroutine: it yields what shall run and is sent the window that was measured there.

Written so, an algorithm reads like the paper's: `now = yield Probe(...)` is "deploy this and measure".  The
`SearchDriver` stands between it and the world, so that a search only ever sees clean windows of exactly what it
asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from pecan_ray.errors import PlanError
from pecan_ray.plan.windows import Decision, Deployment, Removal, Window

PATIENCE = 10
"""Windows in which what runs may differ from what was asked for, before less is taken for an answer."""
RETRY = 50
"""Converged windows after which workers that once did not come are asked for again; doubles with each refusal."""


@dataclass(frozen=True)
class DeploymentLimits:
    """Bounds on a deployment, both ends included."""

    max_local: int
    max_remote: int
    min_local: int = 0
    min_remote: int = 0

    def __post_init__(self) -> None:
        for name in ("local", "remote"):
            least, most = getattr(self, f"min_{name}"), getattr(self, f"max_{name}")
            for value in (least, most):
                if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                    raise PlanError(f"min_{name} and max_{name} must be whole numbers >= 0, but got {value!r}.")
            if most < least:
                raise PlanError(f"max_{name}={most} is below min_{name}={least}.")
        if self.max_local + self.max_remote == 0:
            raise PlanError("max_local=0 and max_remote=0 leave no worker: raise one of them.")

    def clamp(self, local: int, remote: int) -> Deployment:
        """Return the nearest deployment within the bounds that has a worker at all."""
        local = min(max(local, self.min_local), self.max_local)
        remote = min(max(remote, self.min_remote), self.max_remote)
        if local + remote == 0:
            return Deployment(0, 1) if self.max_remote else Deployment(1, 0)
        return Deployment(local, remote)

    def least_remote(self, local: int) -> int:
        """Return how few remote workers may stand beside so many local ones."""
        return max(self.min_remote, 0 if local else 1)

    def capped(self, wanted: Deployment, came: Deployment) -> DeploymentLimits:
        """Return the bounds when no more than `came` can be had of what was wanted."""
        # Only the side of which too few came is bounded.
        local = came.local if came.local < wanted.local else self.max_local
        remote = came.remote if came.remote < wanted.remote else self.max_remote
        return DeploymentLimits(local, remote, min(self.min_local, local), min(self.min_remote, remote))


@dataclass(frozen=True)
class Probe:
    """Deploy `target` and measure it."""

    target: Deployment
    phase: str
    reason: str
    settled: bool = False
    """The search is over; it only watches."""


T = TypeVar("T")
Steps: TypeAlias = Generator[Probe, Window, T]
Search: TypeAlias = Generator[Probe, Window, None]
Begin: TypeAlias = Callable[[Deployment, DeploymentLimits], Search]
"""Starts a search from what is running, within limits."""


def hold(at: Deployment, why: str) -> Search:
    """Stay for ever."""
    while True:
        yield Probe(at, "converged", why, settled=True)


class SearchDriver:
    """Feeds a search with usable windows and turns its moves into decisions."""

    def __init__(
        self,
        begin: Begin,
        limits: DeploymentLimits,
        *,
        patience: int = PATIENCE,
        removal: Removal = "drain",
    ) -> None:
        if patience < 1:
            raise PlanError(f"patience must be at least 1, but got {patience}.")
        self._begin, self._limits = begin, limits
        self._patience, self._removal = patience, removal
        self._search: Search | None = None
        self._move: Probe
        self._mismatched_windows = 0
        self._retry_in = 0
        self._failed_moves = 0

    @property
    def converged(self) -> bool:
        """Return whether the search is over and only watches."""
        return self._search is not None and self._move.settled

    def restrict(self, limits: DeploymentLimits) -> None:
        """Keep within other bounds: the search begins anew where it is outside of them, or was held back before."""
        before, self._limits = self._limits, limits
        if self._search is None or limits == before:
            return
        at = self._move.target
        held_back = (limits.max_local > before.max_local and at.local >= before.max_local) or (
            limits.max_remote > before.max_remote and at.remote >= before.max_remote
        )
        # A search that was not held back by the old bounds finds the same under wider ones, and goes on.
        if held_back or limits.clamp(at.local, at.remote) != at:
            self._search.close()
            self._search = None

    def decide(self, window: Window, deployment: Deployment) -> Decision:
        """Return what shall run next; `deployment` is what ran during the window."""
        if self._search is None:
            self._start(deployment, self._limits)
        invalid_reason = window.invalid_reason()
        if invalid_reason:
            return self._discard(invalid_reason)
        # A window of another deployment says nothing about the one that was asked for.
        if deployment != self._move.target:
            return self._handle_mismatch(window, deployment)
        self._mismatched_windows = 0
        return self._feed(window, deployment)

    def _start(self, deployment: Deployment, limits: DeploymentLimits) -> None:
        if self._search is not None:
            self._search.close()
        self._search = self._begin(limits.clamp(deployment.local, deployment.remote), limits)
        self._switch_to(next(self._search))

    def _feed(self, window: Window, deployment: Deployment) -> Decision:
        assert self._search is not None
        self._switch_to(self._search.send(window))
        if self._limits.clamp(self._move.target.local, self._move.target.remote) != self._move.target:
            self._start(deployment, self._limits)  # it went on when the bounds became narrower, and does not know them
        # Only windows in which the search is settled count: one that still tries has not been refused
        # anything yet.
        if self._retry_in and self._move.settled:
            self._retry_in -= 1
            if not self._retry_in:
                self._start(deployment, self._limits)
        return self._decision(self._move.phase, self._move.reason)

    def _switch_to(self, move: Probe) -> None:
        self._move = move
        self._mismatched_windows = 0

    def _handle_mismatch(self, window: Window, deployment: Deployment) -> Decision:
        target = self._move.target
        self._mismatched_windows += 1
        # With no worker at all there is nothing to settle for.
        if self._mismatched_windows <= self._patience or not deployment.workers:
            return self._discard(f"{deployment} ran, not the {target} that were asked for")
        self._failed_moves += 1
        # The 10 only bounds the number.
        self._retry_in = RETRY * 2 ** min(self._failed_moves - 1, 10)
        waited = self._mismatched_windows
        self._start(deployment, self._limits.capped(target, deployment))
        # This window is of the very deployment that the new search measures first, so it counts.
        if self._move.target == deployment:
            self._feed(window, deployment)
        why = f"after {waited} windows {deployment} run where {target} were asked for, so settle for what there is"
        return self._decision("settle_for_less", f"{why}; {self._move.reason}")

    def _discard(self, invalid_reason: str) -> Decision:
        return self._decision("discarded", f"keep {self._move.target}: the window is thrown away, {invalid_reason}.")

    def _decision(self, phase: str, reason: str) -> Decision:
        return Decision(self._move.target, phase, reason, self._removal)


def mean_window(windows: list[Window]) -> Window:
    """Average windows of one deployment, weighted by batches (batch time and queue only)."""
    batches = sum(window.batches for window in windows)
    return replace(
        windows[-1],
        batch_time=sum(window.batch_time * window.batches for window in windows) / batches,
        queue_size=sum(window.queue_size * window.batches for window in windows) / batches,
        batches=batches,
    )
