"""The window of a shared job beside a list: readers that lag, come late, leave, hold the front back."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pecan_ray.cache import SlidingWindow
from pecan_ray.errors import PlanError
from tests.long_form import examples


class WindowAgainstModel(RuleBasedStateMachine):
    """The window beside a list of all entries that were ever pushed, of which each reader holds an index."""

    @initialize(capacity=st.integers(1, 12), max_lag=st.none() | st.integers(1, 4), overflow=st.integers(0, 6))
    def begin(self, capacity: int, max_lag: int | None, overflow: int) -> None:
        self.window: SlidingWindow[int] = SlidingWindow(capacity, max_lag=max_lag, overflow_bytes=overflow)
        self.capacity, self.overflow, self.max_lag = capacity, overflow, max_lag
        self.moved = 0
        """Places before this one are elsewhere, or have left."""
        self.sizes: list[int] = []
        self.oldest = 0
        self.at: dict[int, int] = {}
        self.skipped: dict[int, int] = {}
        self.read: dict[int, int] = {}
        self.joined: dict[int, int] = {}

    @rule(reader=st.integers(0, 4), newest=st.booleans())
    def attach(self, reader: int, newest: bool) -> None:
        if reader in self.at:
            with pytest.raises(PlanError):
                self.window.attach(reader)
            return
        self.window.attach(reader, at="newest" if newest else "oldest")
        self.at[reader] = self.joined[reader] = len(self.sizes) if newest else self.oldest
        self.skipped[reader] = self.read[reader] = 0

    @precondition(lambda self: self.at)
    @rule(data=st.data())
    def detach(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from(sorted(self.at)))
        self.window.detach(reader)
        del self.at[reader]

    @precondition(lambda self: self.at)
    @rule(data=st.data(), times=st.integers(1, 3))
    def read_some(self, data: st.DataObject, times: int) -> None:
        reader = data.draw(st.sampled_from(sorted(self.at)))
        for _ in range(times):
            wanted = self.at[reader] if self.at[reader] < len(self.sizes) else None
            assert self.window.read(reader) == wanted
            self.at[reader] += wanted is not None
            self.read[reader] += wanted is not None

    @rule(nbytes=st.integers(1, 6), times=st.integers(1, 3))
    def push(self, nbytes: int, times: int) -> None:
        size = min(nbytes, self.capacity)
        for _ in range(times):
            allowed = self.allowed(size)
            assert self.window.may_push(size) == allowed
            if not allowed:
                behind = len(self.sizes) - min(self.at.values())
                with pytest.raises(PlanError, match=rf"cannot be pushed yet: .* is {behind} entries behind;"):
                    self.window.push(len(self.sizes), size)
                continue
            self.window.push(len(self.sizes), size)
            self.sizes.append(size)
            while sum(self.sizes[self.oldest :]) > self.capacity + self.overflow:
                self.oldest += 1
            self.moved = max(self.moved, self.oldest)
            self.make_room()
            for reader, place in self.at.items():
                self.skipped[reader] += max(0, self.oldest - place)
                self.at[reader] = max(place, self.oldest)

    def make_room(self) -> None:
        """What all have read leaves, with all before it; the rest is moved, each entry once and in order."""
        slowest, to_move = min(self.at.values(), default=len(self.sizes)), []
        slowest = max(slowest, self.oldest)
        while sum(self.sizes[self.moved :]) > self.capacity:
            if self.moved < slowest:
                self.oldest = self.moved + 1
            else:
                to_move.append(self.moved)
            self.moved += 1
        assert self.window.take_overflow() == to_move and (self.overflow or not to_move)

    @rule()
    def nothing_can_be_moved_any_more(self) -> None:
        self.window.stop_overflow()
        self.overflow = 0
        while self.max_lag is None and sum(self.sizes[self.oldest :]) > self.capacity:
            self.oldest += 1
        self.moved = max(self.moved, self.oldest)
        for reader, place in self.at.items():
            self.skipped[reader] += max(0, self.oldest - place)
            self.at[reader] = max(place, self.oldest)

    def allowed(self, size: int) -> bool:
        if self.max_lag is None or not self.at:
            return True
        unread = self.sizes[min(self.at.values()) :]
        return len(unread) < self.max_lag and sum(unread) + size <= self.capacity + self.overflow

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "window"):
            return
        kept = self.sizes[self.oldest :]
        assert (len(self.window), self.window.bytes) == (len(kept), sum(kept))
        assert self.window.bytes <= self.capacity + self.overflow or self.max_lag is not None
        assert set(self.window.slowest()) == {r for r in self.at if self.at[r] == min(self.at.values())}
        for reader, place in self.at.items():
            skipped, lag = self.window.skipped(reader), self.window.lag(reader)
            assert (skipped, lag) == (self.skipped[reader], len(self.sizes) - place)
            assert self.read[reader] + skipped + lag == len(self.sizes) - self.joined[reader]
            assert self.max_lag is None or skipped == 0


WindowAgainstModel.TestCase.settings = settings(examples(60), stateful_step_count=30)
TestWindowAgainstModel = WindowAgainstModel.TestCase
