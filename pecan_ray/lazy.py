"""Packages whose names are imported when they are used: an actor's process needs few of them, and starts sooner."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` for a package: `homes` says which module each name is in; "" if it is itself a module."""

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes[name]
        return getattr(importlib.import_module(home), name) if home else importlib.import_module(f"{package}.{name}")

    return get
