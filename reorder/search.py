"""The order of a section that costs least, among those that the constraints allow.

Up to `EXACT_OPS` ops: exact, by dynamic programming over subsets.  What an op costs depends only on the *set* of ops
before it, so the best order of a set S that ends with i is the best order of S without i, followed by i.
Beyond: the order proposed, as far as the constraints allow it, if it costs less than the user's.

Exchanges that gain hardly anything are not made: each costs `EXCHANGE_SHARE` of the user's total.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pecan_ray.reorder.cost import CostModel, LogSize

EXACT_OPS = 10
"""The exact search looks at each member of each subset: 10,240 steps, which double with each op more."""
EXCHANGE_SHARE = 0.01
"""Share of the user's total that each exchange of two ops has to gain: what was measured is not more certain;"""
EXCHANGES_SHARE = 0.1
"""and what one op has to gain that passes all others of a long section."""

Needs = Mapping[int, Collection[int]]
"""Op -> the ops of its section that must run before it."""


@dataclass(frozen=True)
class SectionSearch:
    """One section to be ordered; ops are named by their index in the user's order."""

    model: CostModel
    section: Sequence[int]
    start: LogSize
    needs: Needs

    def best(self, proposal: Sequence[int]) -> list[int]:
        """Return the order of least estimated cost: never above that of the user's order."""
        user = list(self.section)
        share = min(EXCHANGE_SHARE, EXCHANGES_SHARE / max(len(user), 1))
        price = max(share * self.model.total(user, self.start), 1e-300)
        found = self._exact(user, price) if len(user) <= EXACT_OPS else nearest_valid_order(proposal, self.needs)
        return found if self.model.total(found, self.start) < self.model.total(user, self.start) else user

    def _exact(self, members: Sequence[int], price: float) -> list[int]:
        """Order the members (in the user's order) by dynamic programming; bit b of a set stands for members[b]."""
        count = len(members)
        needed = self._needed_sets(members)
        costs = [math.inf] * (1 << count)
        last = [-1] * (1 << count)
        volumes = [self.start] * (1 << count)
        costs[0] = 0.0
        for done in range((1 << count) - 1):
            if done:
                lowest = done & -done
                # The volume behind a set does not depend on its order, so that any member may be taken for the last.
                volumes[done] = self.model.behind(members[lowest.bit_length() - 1], volumes[done ^ lowest])
                if last[done] < 0:
                    continue
            for number, index in enumerate(members):
                place = 1 << number
                if done & place or needed[number] & ~done:
                    continue
                overtaken = (~done & (place - 1)).bit_count()
                cost = costs[done] + self.model.seconds(index, volumes[done]) + price * overtaken
                if last[done | place] < 0 or cost < costs[done | place]:
                    costs[done | place], last[done | place] = cost, number
        return _walk_back(members, last)

    def _needed_sets(self, members: Sequence[int]) -> list[int]:
        """Return for each member the set of members that must have run before it."""
        bit = {index: number for number, index in enumerate(members)}
        return [sum(1 << bit[other] for other in self.needs.get(index, ()) if other in bit) for index in members]


def _walk_back(members: Sequence[int], last: Sequence[int]) -> list[int]:
    done = (1 << len(members)) - 1
    order = []
    while done:
        order.append(members[last[done]])
        done ^= 1 << last[done]
    return order[::-1]


def nearest_valid_order(desired: Sequence[int], needs: Needs) -> list[int]:
    """Return the order nearest to `desired` in which every op follows those that it needs.

    Again and again the op that is wanted first, of those whose needs have run.  O((n + constraints) log n).
    """
    if not needs:
        return list(desired)
    place = {index: number for number, index in enumerate(desired)}
    waiting = {index: len(set(needs.get(index, ()))) for index in desired}
    unlocks: dict[int, list[int]] = {}
    for index in desired:
        for other in set(needs.get(index, ())):
            unlocks.setdefault(other, []).append(index)
    ready = [place[index] for index in desired if not waiting[index]]
    heapq.heapify(ready)
    out: list[int] = []
    while ready:
        index = desired[heapq.heappop(ready)]
        out.append(index)
        for follower in unlocks.get(index, ()):
            waiting[follower] -= 1
            if not waiting[follower]:
                heapq.heappush(ready, place[follower])
    return out
