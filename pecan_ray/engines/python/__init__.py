"""The python engine: the user's functions over NumPy on a pool of threads."""

from pecan_ray.engines.python.engine import PythonEngine

__all__ = ["PythonEngine"]
