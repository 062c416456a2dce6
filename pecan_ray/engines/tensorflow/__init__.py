"""The tensorflow engine: a plan compiled into one tf.data graph."""

from collections.abc import Sequence

from pecan_ray.engines.contract import EngineOptions, Slots
from pecan_ray.engines.without_keras import import_tensorflow
from pecan_ray.errors import MissingExtraError
from pecan_ray.plan.operators import Plan
from pecan_ray.plan.splits import Source

try:
    # Before the engine's modules, each of which would import TensorFlow with Keras and JAX.
    import_tensorflow()
except ImportError as error:
    raise MissingExtraError(
        'engine="tensorflow" needs TensorFlow: pip install "pecan_ray[tf]" (or tensorflow-cpu where there is no GPU).'
    ) from error

from pecan_ray.engines.tensorflow.debug import replay, run_here
from pecan_ray.engines.tensorflow.engine import TensorFlowEngine
from pecan_ray.engines.tensorflow.rounds import RoundsEngine


def build(plan: Plan, sources: Sequence[Source], options: EngineOptions, slots: Slots) -> TensorFlowEngine:
    """Return an engine that runs a plan on this machine."""
    return (TensorFlowEngine if options.ranks is None else RoundsEngine)(plan, sources, options, slots)


__all__ = ["TensorFlowEngine", "build", "replay", "run_here"]
