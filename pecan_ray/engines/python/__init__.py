"""The python engine: the user's functions over NumPy on a pool of threads."""

from pecan_ray.engines.python.debug import replay, run_here
from pecan_ray.engines.python.engine import PythonEngine

build = PythonEngine

__all__ = ["PythonEngine", "build", "replay", "run_here"]
