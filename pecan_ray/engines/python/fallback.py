"""A chain in an order that AutoOrder chose, and the user's order for elements that it fails on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from pecan_ray.engines.element_errors import apply_error_policy
from pecan_ray.engines.fork_tracker import ForkError
from pecan_ray.engines.items import Item, deep_copy
from pecan_ray.engines.positions import SkippedPositions
from pecan_ray.engines.python.chain import Chain
from pecan_ray.engines.users_order import UsersOrder
from pecan_ray.errors import ColumnError, ElementError
from pecan_ray.options import OnError
from pecan_ray.plan.operators import ElementOp
from pecan_ray.plan.splits import Element


class FallbackChain:
    """Runs items in an order; one that fails there, in the user's, and if it passes there, all others too.

    Only what fails in the user's order as well is an error.
    """

    def __init__(
        self,
        ops: Sequence[ElementOp],
        chain: Chain,
        in_users_order: Callable[[], Chain],
        order: UsersOrder,
        on_error: OnError,
        skipped_positions: SkippedPositions,
        read_again: Callable[[Item], Element] | None,
    ) -> None:
        """`read_again` gives an element as it was; without it each is copied beforehand."""
        self._ops, self._chain, self._make, self._order = ops, chain, in_users_order, order
        self._on_error, self._skipped_positions, self._reload = on_error, skipped_positions, read_again
        self._lock = threading.Lock()
        """Guards the making of the chain in the user's order."""
        self._users: Chain | None = None

    def run(self, item: Item) -> list[Item]:
        """Return what becomes of an item."""
        # Without a lock: a thread that misses the change runs one more element in the order that is given up,
        # and falls back.
        if self._order.taken:
            return self._users_chain().run(item)
        # Functions may write into the element before one fails, and the user's order needs it as it was.
        before = deep_copy(item.value) if self._reload is None else None
        try:
            return self._chain.attempt(item)
        # A column may be missing in this order alone: its operator may stand before the one that makes it.
        except (ElementError, ColumnError) as error:
            if isinstance(error.__cause__, ForkError):
                raise  # it is told of once, whatever the order
            return self._fall_back(item, before, error)

    def _fall_back(self, item: Item, before: Element | None, error: ElementError | ColumnError) -> list[Item]:
        item.value = self._reload(item) if self._reload is not None else before
        kept = deep_copy(item.value) if self._on_error == "quarantine" else None
        try:
            made = self._users_chain().attempt(item)
        except ElementError as users_error:
            apply_error_policy(item, users_error, self._on_error, self._skipped_positions, kept)
            return []
        # Only now: an element that fails in both orders says nothing about the order.
        self._order.take(item.where(), error, self._ops)
        return made

    def _users_chain(self) -> Chain:
        with self._lock:
            if self._users is None:
                self._users = self._make()
            return self._users

    def run_all(self, items: Sequence[Item]) -> list[Item]:
        """Return what becomes of several items."""
        self.prefetch_calls(items)
        return [made for item in items for made in self.run(item)]

    def prefetch_calls(self, items: Sequence[Item]) -> None:
        """Make the calls of a first operator in another process, for items that are about to be run."""
        (self._users_chain() if self._order.taken else self._chain).prefetch_calls(items)

    @property
    def is_out_of_process(self) -> bool:
        """Return whether the first operator runs in another process, to which several calls had better go together."""
        return self._chain.is_out_of_process
