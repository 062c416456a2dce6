"""The tensorflow engine: a plan compiled into one tf.data graph."""

from pecan_ray.engines.without_keras import import_tensorflow
from pecan_ray.errors import MissingExtraError

try:
    # Before the engine's modules, each of which would import TensorFlow with Keras and JAX.
    import_tensorflow()
except ImportError as error:
    raise MissingExtraError(
        'engine="tensorflow" needs TensorFlow: pip install "pecan_ray[tf]" (or tensorflow-cpu where there is no GPU).'
    ) from error

from pecan_ray.engines.tensorflow.debug import replay, run_here
from pecan_ray.engines.tensorflow.engine import TensorFlowEngine

build = TensorFlowEngine

__all__ = ["TensorFlowEngine", "build", "replay", "run_here"]
