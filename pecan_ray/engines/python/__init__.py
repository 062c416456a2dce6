"""The python engine: the user's functions over NumPy on a pool of threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pecan_ray.lazy import lazy_names

if TYPE_CHECKING:
    from pecan_ray.engines.python.debug import replay, run_here
    from pecan_ray.engines.python.engine import PythonEngine, build

__all__ = ["PythonEngine", "build", "replay", "run_here"]

# The processes that run functions import this package for their own module alone.
__getattr__ = lazy_names(
    __name__,
    {
        "PythonEngine": "pecan_ray.engines.python.engine",
        "build": "pecan_ray.engines.python.engine",
        "replay": "pecan_ray.engines.python.debug",
        "run_here": "pecan_ray.engines.python.debug",
    },
)
