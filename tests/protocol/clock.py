"""Virtual time and what is due in it: one seeded scheduler for all parties of a history."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

HEARD_WITHIN_S = 15.0
"""A party that moves is heard within so long, also where messages are lost."""


class Party:
    """Whoever acts: it may stand still for a while, or be gone."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.frozen_since = self.frozen_until = 0.0

    def stands_still(self, now: float) -> bool:
        """Tell whether it does nothing now: what reaches it waits."""
        return now < self.frozen_until

    def freeze(self, now: float, seconds: float) -> float:
        """Stand still for so long; return for how long then since it could last be heard."""
        if now > self.frozen_until + HEARD_WITHIN_S:
            self.frozen_since = now
        self.frozen_until = max(self.frozen_until, now + seconds)
        return self.frozen_until - self.frozen_since


class Clock:
    """Runs what is due, in the order of virtual time."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.events = 0
        self.random = random.Random(seed)
        self._heap: list[tuple[float, int, Party | None, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0

    def after(self, delay: float, party: Party | None, act: Callable[..., None], *args: Any) -> None:
        """Let a party do something later; not at all if it is gone by then, and when it can if it stands still."""
        self._number += 1
        heappush(self._heap, (self.now + delay, self._number, party, act, args))

    def step(self) -> bool:
        """Do what is due next; tell whether there was anything."""
        while self._heap:
            time, _, party, act, args = heappop(self._heap)
            if party is not None:
                if not party.alive or party.frozen_until == math.inf:
                    continue
                if party.frozen_until > time:
                    self._number += 1
                    heappush(self._heap, (party.frozen_until, self._number, party, act, args))
                    continue
            self.now = time
            self.events += 1
            act(*args)
            return True
        return False


class Links:
    """The network: control messages are delayed, reordered, doubled and lost."""

    def __init__(self, clock: Clock, delay_s: float, lost: float, doubled: float) -> None:
        self._clock, self._delay_s, self._lost, self._doubled = clock, delay_s, lost, doubled
        self.dropped = self.repeated = 0

    def delay(self) -> float:
        """Draw how long a message is under way: rarely much longer than usual."""
        draw = self._clock.random.random()
        usual = self._delay_s * (0.1 + 1.8 * draw)
        return usual if draw < 0.98 else usual * 50

    def send(self, party: Party, act: Callable[..., None], *args: Any) -> None:
        """Send a control message, which may be lost, or come twice."""
        if self._lost and self._clock.random.random() < self._lost:
            self.dropped += 1
            return
        self._clock.after(self.delay(), party, act, *args)
        if self._doubled and self._clock.random.random() < self._doubled:
            self.repeated += 1
            self._clock.after(self.delay(), party, act, *args)

    def call(self, party: Party, act: Callable[..., None], *args: Any) -> None:
        """Send a message that the platform itself sees delivered, once."""
        self._clock.after(self.delay(), party, act, *args)
