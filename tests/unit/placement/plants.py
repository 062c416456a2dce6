"""A tiny plant to drive scaling policies with: batch time as a function of local and remote workers.

    batch_time(l, r) = max( t_model * slowdown(l, r),  t_work / (l * speed_l + r * speed_r) )

The first is the trainer's own step, the second the pace of the workers.  Noise is seeded, time does not pass.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from pecan_ray.placement import AutoPlacement
from pecan_ray.placement.looks import Observation
from pecan_ray.plan.prices import Prices
from pecan_ray.plan.windows import Deployment, Window
from tests.unit.placement.fluid import observed

QUEUE = 8
"""Batches that the client's queue holds."""


@dataclass(frozen=True)
class Plant:
    """A job on its cluster."""

    t_model: float = 0.1
    t_work: float = 1.0
    speed_l: float = 1.0
    speed_r: float = 1.0
    prices: Prices = field(default_factory=lambda: Prices(4.96, 0.42))
    max_local: int = 16
    max_remote: int = 64
    slowdown: Callable[[int, int], float] = lambda _local, _remote: 1.0

    def step(self, at: Deployment) -> float:
        """Seconds of the trainer's own step."""
        return self.t_model * self.slowdown(at.local, at.remote)

    def supply(self, at: Deployment) -> float:
        """Batches per second of the workers."""
        return (at.local * self.speed_l + at.remote * self.speed_r) / self.t_work

    def batch_time(self, at: Deployment) -> float:
        """Seconds per batch."""
        return max(self.step(at), 1 / self.supply(at))


@dataclass
class Meter:
    """Measures windows of a plant; `noise` is the relative spread of a window, `stalls` how many a trainer's pause
    spoils."""

    plant: Plant
    seed: int = 0
    noise: float = 0.0
    stalls: float = 0.0
    batches: int = 100
    waiting: bool = True
    """Whether the client measures how long it waits."""

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def window(self, at: Deployment) -> Window:
        """Measure one window."""
        own = self.plant.step(at) * self._factor()
        if self._random.random() < self.stalls:
            own *= self._random.uniform(1.1, 1.5)
        starved = self.plant.batch_time(at) > self.plant.step(at)
        batch_time = max(own, self.plant.batch_time(at) * self._factor()) if starved else own
        spare = max(0.02, 1 - 1 / self.plant.supply(at) / own)
        return Window(
            batch_time=batch_time,
            queue_size=QUEUE * spare * self._factor(),
            batches=self.batches,
            wait_time=batch_time - own if self.waiting else None,
            stderr=self.noise * batch_time,
        )

    def _factor(self) -> float:
        return math.exp(self._random.gauss(0, self.noise)) if self.noise else 1.0


def drive(policy: AutoPlacement, meter: Meter, start: Deployment) -> list[Deployment]:
    """Return the deployments that a policy goes through until it has converged."""
    moves = [start]
    for _ in range(600):
        target = policy.decide(meter.window(moves[-1]), moves[-1]).target
        if target != moves[-1]:
            moves.append(target)
        if policy.converged:
            break
    return moves


def random_plant(seed: int) -> Plant:
    """Draw a job: from trivial to one that needs forty workers, cheap and dear hosts, fast and slow local workers."""
    draw = random.Random(seed)
    t_model = 10 ** draw.uniform(-2, 0)
    return Plant(
        t_model=t_model,
        t_work=t_model * 10 ** draw.uniform(-0.3, 1.6),
        speed_l=draw.uniform(0.4, 1.6),
        speed_r=draw.uniform(0.6, 1.4),
        slowdown=draw.choice([lambda local, remote: 1.0, lambda local, remote: 1 + 0.02 * local]),
        prices=Prices(draw.uniform(1, 12), draw.uniform(0.1, 1.0)),
        max_local=draw.choice([4, 8, 16]),
    )


ROWS = 100
"""Of a batch."""


def seen(plant: Plant, at: Deployment, room: Deployment, pace: float = math.inf, dt: float = 0.5) -> Observation:
    """Return what mode "auto" sees of a plant in so many seconds; `pace`: rows a second that are enough."""
    supply, step_s = plant.supply(at), plant.step(at)
    rate = min(supply, 1 / step_s)
    each = ROWS * plant.speed_l / plant.t_work, ROWS * plant.speed_r / plant.t_work
    waited, steps = dt * max(0.0, 1 - step_s * rate), max(1, round(rate * dt))
    return observed(at, each, rate / supply, dt=dt, room=room, waited=waited, steps=steps, required_rate=pace)
