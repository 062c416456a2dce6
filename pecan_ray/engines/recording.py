"""An element that writes down which of its columns a function looks at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


# A subclass and no other mapping: functions check `isinstance(element, dict)`, and C code takes dicts alone.
class Recording(dict[str, Any]):
    """A dict that notes the columns which are asked for, whether or not they exist.

    Copies by `copy` go on noting.  Copies by ``{**element}`` and ``dict(element)`` are plain dicts: what a function
    reads from those must be found in another way.
    """

    def __init__(self, columns: Mapping[str, Any] | Iterable[tuple[str, Any]], seen: set[str] | None = None) -> None:
        super().__init__(columns)
        self.seen: set[str] = set() if seen is None else seen

    def __getitem__(self, name: str) -> Any:
        self.seen.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        # Names that are no texts cannot be columns; a function may still ask for one.
        if isinstance(name, str):
            self.seen.add(name)
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a column, or the default."""
        self.seen.add(name)
        return super().get(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        """Remove a column and return it."""
        self.seen.add(name)
        return super().pop(name, *default)

    def setdefault(self, name: str, default: Any = None) -> Any:
        """Return a column, which is set if it is missing."""
        self.seen.add(name)
        return super().setdefault(name, default)

    def items(self) -> Any:
        """Return names and values of all columns."""
        # A function that walks over all columns may depend on each of them, and on which there are.
        self.seen.update(self)
        return super().items()

    def values(self) -> Any:
        """Return the values of all columns."""
        self.seen.update(self)
        return super().values()

    def copy(self) -> Recording:
        """Return a copy that notes in the same place."""
        return Recording(self, self.seen)

    # `copy.copy` would go by `__reduce_ex__` and make a record that notes elsewhere.
    def __copy__(self) -> Recording:
        return self.copy()
