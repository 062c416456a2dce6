"""Functions traced for elements of one spec, in which constants for channels are made as wide as a row of pixels.

TensorFlow broadcasts three values over an image three to five times more slowly than the same values repeated for each
pixel of a row, with the same result: a fifth of the time of decoding, cropping, resizing and normalizing a photograph
(docs/decisions/tensorflow-engine.md#17-constants-as-wide-as-rows).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pecan_ray.engines.tensorflow.columns import Tensor
from pecan_ray.sources.tf_wide_constants import NARROW, PIXELWISE, WIDEST_BYTES

Operation = Any


class GraphFunction:
    """A function traced for arguments of one spec; called with such arguments, in graphs or eagerly."""

    def __init__(self, run: Callable[..., Any], *spec: Any) -> None:
        def on_tensors(*tensors: Tensor) -> Any:
            return run(*tf.nest.pack_sequence_as(spec, tensors, expand_composites=True))

        tensors = tf.nest.flatten(spec, expand_composites=True)
        self.traced = _trace(on_tensors, tensors)
        """As the caller wrote it."""
        wide = list(_too_narrow(self.traced.graph.get_operations()))
        self._call = _trace(_with_broadcast(self.traced, wide), tensors) if wide else self.traced

    def __call__(self, *args: Any) -> Any:
        """Return what the function makes of its arguments."""
        return self._call(*tf.nest.flatten(args, expand_composites=True))


def _trace(run: Callable[..., Any], tensors: list[Any]) -> Any:
    # Without AutoGraph: `with_control_flow` has converted the user's functions by then, and ours need none.
    return tf.function(run, autograph=False).get_concrete_function(*tensors)


def _too_narrow(operations: list[Operation]) -> Iterator[tuple[str, int, npt.NDArray[Any]]]:
    """Yield the name of an operation, which of its two inputs is such a constant, and what to have instead."""
    for operation in operations:
        if operation.type not in PIXELWISE:
            continue
        for place, (constant, image) in enumerate((tuple(operation.inputs), tuple(operation.inputs)[::-1])):
            wide = _wide(constant, image) if constant.op.type == "Const" else None
            if wide is not None:
                yield operation.name, place, wide


def _wide(constant: Tensor, image: Tensor) -> npt.NDArray[Any] | None:
    """Return a value per channel, repeated for each pixel of a row; None where it is none, or rows vary in length."""
    if not image.shape.rank or image.shape.rank < 2 or not constant.shape.rank:
        return None
    pixels, channels = image.shape[-2:]
    # Rows of unknown length: nothing can be made as wide as they are.
    if not pixels or not channels or not 1 < channels <= NARROW or constant.shape[-1] != channels:
        return None
    if constant.shape.num_elements() != channels or constant.shape.rank > image.shape.rank:
        return None
    value = tf.get_static_value(constant)
    if value is None or pixels * value.nbytes > WIDEST_BYTES:
        return None
    return np.broadcast_to(value.reshape(channels), (pixels, channels))


def _with_broadcast(traced: Any, wide: list[tuple[str, int, npt.NDArray[Any]]]) -> Callable[..., Any]:
    """Return a function of tensors that does what a traced one does, with other constants."""
    definition = traced.graph.as_graph_def()
    nodes = {node.name: node for node in definition.node}
    for number, (name, place, value) in enumerate(wide):
        constant = definition.node.add(name=f"wide_constant_{number}", op="Const")
        constant.attr["dtype"].type = tf.as_dtype(value.dtype).as_datatype_enum
        constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
        nodes[name].input[place] = constant.name
    inputs, outputs = traced.inputs, traced.outputs

    def run(*tensors: Tensor) -> Any:
        graph = tf.compat.v1.get_default_graph()
        # Captured tables and variables are inputs of the traced function; the new graph has to capture them
        # as well.
        given = [*tensors, *(graph.capture(tensor) for tensor in traced.captured_inputs)]
        replaced = {placeholder.name: tensor for placeholder, tensor in zip(inputs, given, strict=True)}
        found = tf.graph_util.import_graph_def(definition, replaced, [tensor.name for tensor in outputs], name="wide")
        for tensor, before in zip(found, outputs, strict=True):
            tensor.set_shape(before.shape)  # what Python code knew of a shape is not in the definition
        return tf.nest.pack_sequence_as(traced.structured_outputs, found, expand_composites=True)

    return run
