"""Elements that a batch cannot hold, because they cannot be sent, are found before they are placed."""

from __future__ import annotations

from pecan_ray.engines.collate import with_arrays
from pecan_ray.engines.contract import is_columnar
from pecan_ray.engines.element_errors import apply_error_policy
from pecan_ray.engines.items import Item
from pecan_ray.engines.positions import SkippedPositions
from pecan_ray.engines.python.serializable_items import check_serializable
from pecan_ray.engines.row_types import split_by_kind
from pecan_ray.engines.serializable import PLAIN_OR_NUMBERS
from pecan_ray.errors import OpError
from pecan_ray.options import OnError


class SendableItems:
    """Leaves out, by `on_error`, elements with columns that cannot be sent."""

    def __init__(self, made_by: str, skipped_positions: SkippedPositions, on_error: OnError, strict: bool) -> None:
        """`made_by`: the operator that the elements come from.  `strict`: an error has a place among them."""
        self._made_by, self._skipped_positions = made_by, skipped_positions
        self._on_error, self._strict = on_error, strict
        self._holds_objects: bool | None = None
        """Whether elements have columns that are pickled on their way; None: not known yet."""

    def pieces(self, items: list[Item], error: BaseException | None) -> tuple[list[list[Item]], BaseException | None]:
        """Return the outputs of a chunk which can be sent, in pieces; up to one that cannot, and the error."""
        # A lease with a place: the trainer joins these rows, in blocks of one kind
        # (docs/decisions/order-and-rows.md#158-blocks-of-one-kind).
        if items and items[0].lease.place is not None:
            return self._of_one_kind(items, error)
        if self._holds_objects is None and items:
            self._holds_objects = not all(map(is_columnar, items[0].value.values()))
        if self._holds_objects:
            items, error = self._sendable(with_arrays(items), error)
        return [items], error

    def _of_one_kind(
        self, items: list[Item], error: BaseException | None
    ) -> tuple[list[list[Item]], BaseException | None]:
        """Return elements in pieces of one kind each; up to one that cannot be sent, and the error."""
        found: list[list[Item]] = []
        for piece in split_by_kind(items):
            cannot = None
            if not all(map(is_columnar, piece[0].value.values())):
                piece, cannot = self._sendable(with_arrays(piece), None)
            found.append(piece)
            if cannot is not None:
                return found, cannot
        return found, error

    def _sendable(self, items: list[Item], error: BaseException | None) -> tuple[list[Item], BaseException | None]:
        """Return what can be sent; where order is kept, up to an item that cannot, and the error."""
        plain, kept = PLAIN_OR_NUMBERS.issuperset, []
        try:
            for item in items:
                if plain(map(type, item.value.values())) or self._can_send(item):
                    kept.append(item)
        except OpError as cannot:
            if not self._strict:
                raise
            error = cannot
        return kept, error

    def _can_send(self, item: Item) -> bool:
        try:
            check_serializable(item, self._made_by)
        except OpError as error:
            apply_error_policy(item, error, self._on_error, self._skipped_positions)
            return False
        return True
