"""Libraries that are needed for some sources and decoders alone."""

from __future__ import annotations

import importlib
from typing import Any

from pecan_ray.errors import MissingExtraError


def library(module: str, needed_by: str, extra: str) -> Any:
    """Return a module; raises MissingExtraError, which names the extra to install, where it cannot be imported."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{needed_by} needs {module.partition('.')[0]} ({error}): pip install 'pecan_ray[{extra}]' (on the workers "
            "too).",
            extra=extra,
        ) from error
