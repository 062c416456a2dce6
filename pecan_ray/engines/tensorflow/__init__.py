"""The tensorflow engine: a plan compiled into one tf.data graph."""

from pecan_ray.errors import MissingExtraError

try:
    import tensorflow  # noqa: F401  # only to tell at once if it is missing
except ImportError as error:
    raise MissingExtraError(
        'engine="tensorflow" needs TensorFlow: pip install "pecan_ray[tf]" (or tensorflow-cpu where there is no GPU).'
    ) from error

from pecan_ray.engines.tensorflow.engine import TensorFlowEngine

__all__ = ["TensorFlowEngine"]
