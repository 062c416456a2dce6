"""Functions of tf.data pipelines in which a value for each channel of an image is repeated for each pixel of a row.

TensorFlow broadcasts three values over an image three to five times more slowly than the same values repeated along a
row, with the same bits (docs/decisions/tensorflow-engine.md#215-rows-of-constants-in-datasets).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pecan_ray.sources.tf_rewritten_function import Definition, RewrittenFunction, new_name

PIXELWISE = frozenset({"Add", "AddV2", "Sub", "Mul", "Div", "RealDiv", "Maximum", "Minimum"})
"""Operations of two tensors, value by value."""
NARROW = 64
"""Constants of more values are broadcast fast as they are."""
WIDEST_BYTES = 1 << 18
"""Wider constants would push the image out of the processor's cache."""


class NarrowConstant(NamedTuple):
    """A value per channel that an operation broadcasts over an image."""

    operation: str
    place: int
    """Which of the operation's two inputs it is."""
    rank: int
    channels: int


def with_rows_of_constants(traced: Any) -> Any:
    """Return a traced function for tf.data, in which constants for channels are as wide as rows of pixels."""
    narrow = list(_narrow_constants(traced.graph.get_operations()))
    if not narrow:
        return traced
    own = type(traced.function_def)()
    own.CopyFrom(traced.function_def)
    own.signature.name = new_name(own.signature.name, "rows")
    nodes = {node.name: node for node in own.node_def}
    for one in narrow:
        node = nodes[one.operation]
        node.input[one.place] = _row(own, node, one)
    return RewrittenFunction(traced, own, [], list(traced.graph.as_graph_def().library.function))


def _narrow_constants(operations: Sequence[Any]) -> Iterator[NarrowConstant]:
    for operation in operations:
        if operation.type not in PIXELWISE:
            continue
        for place, (constant, image) in enumerate((tuple(operation.inputs), tuple(operation.inputs)[::-1])):
            if constant.op.type == "Const" and _is_narrow(constant, image):
                yield NarrowConstant(operation.name, place, constant.shape.rank, int(constant.shape[-1]))


def _is_narrow(constant: Any, image: Any) -> bool:
    """Tell whether a constant is a value for each channel of an image, or of a batch of images."""
    if not constant.shape.rank or not image.shape.rank or image.shape.rank < 3:
        return False
    pixels, channels = image.shape[-2:]
    if not 1 < constant.shape[-1] <= NARROW or constant.shape.num_elements() != channels:
        return False
    return bool(constant.shape[-1] == channels and (pixels or 0) * channels * constant.dtype.size <= WIDEST_BYTES)


def _row(function: Definition, node: Any, narrow: NarrowConstant) -> str:
    """Add operations that repeat a constant for each pixel of a row; return their output.

    They look at the image itself: a shape that `set_shape` has told of it may be wrong, and results must not depend on
    that.  So an image of fewer than two dimensions gets what it would have got, too.
    """
    constant, image = node.input[narrow.place], node.input[1 - narrow.place]
    add = _Additions(function, f"{node.name}_row_{narrow.place}")
    shape = add("Shape", image, T=node.attr["T"].type, out_type=add.int32)
    # A constant of two dimensions and more gives the result as many, whatever the image has.
    dimensions = add.joined(add.numbers([1, 1] if narrow.rank > 1 else []), shape)
    masks = dict.fromkeys(("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"), 0)
    ends = (add.numbers([-2]), add.numbers([-1]), add.numbers([1]))
    pixels = add("StridedSlice", dimensions, *ends, T=add.int32, Index=add.int32, counts=masks)
    row = add.joined(add.numbers([1] * (narrow.rank - 2)), pixels, add.numbers([narrow.channels]))
    return add("BroadcastTo", constant, row, T=node.attr["T"].type, Tidx=add.int32)


class _Additions:
    """Operations that are added to a function's definition under one prefix."""

    def __init__(self, function: Definition, prefix: str) -> None:
        import tensorflow as tf

        self._tf, self._function, self._prefix, self._count = tf, function, prefix, 0
        self.int32 = tf.int32.as_datatype_enum

    def __call__(self, op: str, *inputs: str, counts: dict[str, int] | None = None, **types: Any) -> str:
        """Add an operation with attributes that are types and integers; return its one output."""
        node = self._node(op)
        node.input.extend(inputs)
        for name, kind in types.items():
            node.attr[name].type = kind
        for name, count in (counts or {}).items():
            node.attr[name].i = count
        return f"{node.name}:output:0"

    def numbers(self, values: list[int]) -> str:
        """Add a constant vector of integers."""
        return self._constant(values, [len(values)])

    def joined(self, *vectors: str) -> str:
        """Add an operation that puts vectors of integers one behind the other."""
        counts = {"N": len(vectors)}
        return self("ConcatV2", *vectors, self._constant([0], []), T=self.int32, Tidx=self.int32, counts=counts)

    def _constant(self, values: list[int], shape: list[int]) -> str:
        node = self._node("Const")
        node.attr["dtype"].type = self.int32
        node.attr["value"].tensor.CopyFrom(self._tf.make_tensor_proto(values, self._tf.int32, shape))
        return f"{node.name}:output:0"

    def _node(self, op: str) -> Any:
        self._count += 1
        return self._function.node_def.add(name=f"{self._prefix}/{op}_{self._count}", op=op)
