"""Decoding ``tf.train.Example`` and ``SequenceExample`` without TensorFlow: message types declared at run time."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
from google.protobuf.unknown_fields import UnknownFieldSet

from pecan_ray.errors import PlanError
from pecan_ray.plan.splits import Element
from pecan_ray.sources.arrow import column_of, objects

# Declared here, so that nobody needs TensorFlow for it:
# docs/decisions/sources.md#3-a-tfrecord-reader-of-our-own.
_FIELD = descriptor_pb2.FieldDescriptorProto
_LISTS = {"BytesList": _FIELD.TYPE_BYTES, "FloatList": _FIELD.TYPE_FLOAT, "Int64List": _FIELD.TYPE_INT64}
_KINDS = {"bytes_list": "BytesList", "float_list": "FloatList", "int64_list": "Int64List"}
_TYPES = {"bytes_list": "binary", "float_list": "float32", "int64_list": "int64"}
FEW_VALUES = 32
"""So few are copied one by one in less time than NumPy takes to find out that they lie in memory side by side."""
SHAPES = ("{}", "list<{}>", "list<list<{}>>")
FEATURE_TYPES = tuple(shape.format(kind) for shape in SHAPES for kind in _TYPES.values())
"""What a column can be fixed to: one value, a list of any length, or (of feature lists) a list in each step."""


def check_features(features: Any) -> None:
    """Raise PlanError for what is not types by the names of features."""
    if not isinstance(features, Mapping):
        raise PlanError(f'features must give types by name ({{"ids": "list<int64>"}}), but got {features!r}.')
    wrong = next((name for name, kind in features.items() if kind not in FEATURE_TYPES), None)
    if wrong is not None:
        raise PlanError(
            f"features[{wrong!r}] = {features[wrong]!r} is none of {', '.join(FEATURE_TYPES)}, which Examples can hold."
        )


def parse_example(record: bytes, features: Mapping[str, str]) -> Element:
    """Return the features of a serialized Example or SequenceExample; raises ValueError if it is none.

    A feature whose type is not given: one value becomes bytes, int or np.float32; none or several become an array (of
    objects for bytes, float32 or int64); one without any kind is left out.  A feature list is a list of lists.
    """
    example = _example_class()()
    try:
        example.ParseFromString(record)
    except message.DecodeError as error:
        raise ValueError(f"not a serialized tf.train.Example: {error}") from error
    _check_no_unknown_fields(example, example.features)
    columns, held = {}, example.features.feature
    # Maps of protocol buffers have no order of their own: columns come alike in each process.
    for name in sorted(held):
        feature = held[name]
        kind = feature.WhichOneof("kind")
        if len(UnknownFieldSet(feature)):
            _check_no_unknown_fields(feature)
        if kind is not None:
            wanted = features.get(name)
            columns[name] = _value(kind, getattr(feature, kind).value, wanted and _shape(name, kind, wanted, 1))
    if example.HasField("feature_lists"):
        columns.update(_feature_lists(example.feature_lists, features, columns))
    for name in features.keys() - columns.keys():
        columns[name] = _missing_value(name, features[name])
    return columns


def _feature_lists(lists: Any, features: Mapping[str, str], context: Element) -> Element:
    """Return the feature lists of a SequenceExample."""
    _check_no_unknown_fields(lists)
    columns = {}
    for name, steps in sorted(lists.feature_list.items()):
        if name in context:
            raise ValueError(f"{name!r} is a feature of the context, and a feature list")
        _check_no_unknown_fields(steps, *steps.feature)
        columns[name] = _steps(name, steps.feature, features.get(name))
    return columns


def _check_no_unknown_fields(*messages: Any) -> None:
    """Raise ValueError for parts of an Example that hold more than their message types declare."""
    for one in messages:
        if len(UnknownFieldSet(one)):
            raise ValueError("not a tf.train.Example: it holds fields that Examples have not, which would be lost")


def _shape(name: str, kind: str, wanted: str, most: int) -> str:
    """Return the shape of a wanted type; raises ValueError where a feature is of another type."""
    for shape in SHAPES[: most + 1]:
        if wanted == shape.format(_TYPES[kind]):
            return shape
    message = "a feature list" if most > 1 else "a feature"
    raise ValueError(f"{name!r} is {message} of {_TYPES[kind]}, and features= says {wanted!r}")


def _missing_value(name: str, wanted: str) -> Any:
    """Return the value of a feature that a record lacks: an empty list; raises ValueError where one value is wanted."""
    if not wanted.startswith("list<"):
        raise ValueError(f"it has no feature {name!r}, which features= says is a single {wanted}")
    kind = next(kind for kind in _KINDS if _TYPES[kind] in wanted)
    return _steps(name, [], wanted) if wanted.startswith("list<list<") else _value(kind, [], "list<{}>")


def _value(kind: str, values: Any, shape: str | None) -> Any:
    """Return the values of a feature in a shape, or in the one that their number asks for."""
    if shape == "{}" and len(values) != 1:
        raise ValueError(f"a feature has {len(values)} values, where features= says that it is a single one")
    single = len(values) == 1 and shape != "list<{}>"
    if kind == "bytes_list":
        return values[0] if single else objects(values)
    dtype = np.float32 if kind == "float_list" else np.int64
    if single:
        return np.float32(values[0]) if dtype is np.float32 else int(values[0])
    return np.fromiter(values, dtype, len(values)) if len(values) < FEW_VALUES else np.array(values, dtype)


def _kind_of(name: str, steps: Any, wanted: str | None) -> str:
    """Return the kind of all steps; where none has a value, the one that is wanted."""
    kinds = {kind for step in steps if (kind := step.WhichOneof("kind")) is not None}
    if len(kinds) > 1:
        raise ValueError(f"the steps of {name!r} are of different types: {', '.join(sorted(kinds))}")
    message = next((kind for kind in _KINDS if wanted and _TYPES[kind] in wanted), "float_list")
    return next(iter(kinds), message)


def _steps(name: str, steps: Any, wanted: str | None) -> Any:
    """Return a feature list: a list of values where that is wanted and each step has one, else of lists."""
    kind = _kind_of(name, steps, wanted)
    values = [list(getattr(step, kind).value) for step in steps]
    nested = pa.list_(pa.type_for_alias(_TYPES[kind]))
    if wanted is None or (shape := _shape(name, kind, wanted, 2)) == "list<list<{}>>":
        return column_of(pa.array([values], pa.list_(nested)))[0]
    if shape == "{}" or any(len(step) != 1 for step in values):
        raise ValueError(f"the steps of {name!r} have other numbers of values than features= says: {wanted!r}")
    return _value(kind, [step[0] for step in values], shape)


@lru_cache(maxsize=1)
def _example_class() -> type[Any]:
    # A pool of our own: TensorFlow registers the same names in the default one.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file())
    found: type[Any] = message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))
    return found


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="pecan_ray/example.proto", package="tensorflow", syntax="proto3")
    for name, kind in _LISTS.items():
        value = file.message_type.add(name=name).field.add(
            name="value", number=1, type=kind, label=_FIELD.LABEL_REPEATED
        )
        if kind != _FIELD.TYPE_BYTES:
            # As in TensorFlow's own declaration; parsers take both ways.
            value.options.packed = True
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, kind_name) in enumerate(_KINDS.items(), start=1):
        _add_message(feature, name, number, kind_name).oneof_index = 0
    steps = file.message_type.add(name="FeatureList")
    _add_message(steps, "feature", 1, "Feature").label = _FIELD.LABEL_REPEATED
    _add_map(file, "Features", "feature", "Feature")
    _add_map(file, "FeatureLists", "feature_list", "FeatureList")
    # A SequenceExample is an Example, whose features are called its context, with a second field.
    example = file.message_type.add(name="Example")
    _add_message(example, "features", 1, "Features")
    _add_message(example, "feature_lists", 2, "FeatureLists")
    return file


def _add_map(file: descriptor_pb2.FileDescriptorProto, owner: str, field: str, held: str) -> None:
    """Add a message that has values of a type by name."""
    made = file.message_type.add(name=owner)
    entry_name = f"{held}Entry"
    entry = made.nested_type.add(name=entry_name)
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=_FIELD.TYPE_STRING, label=_FIELD.LABEL_OPTIONAL)
    _add_message(entry, "value", 2, held)
    _add_message(made, field, 1, f"{owner}.{entry_name}").label = _FIELD.LABEL_REPEATED


def _add_message(
    owner: descriptor_pb2.DescriptorProto, name: str, number: int, type_name: str
) -> descriptor_pb2.FieldDescriptorProto:
    return owner.field.add(
        name=name,
        number=number,
        type=_FIELD.TYPE_MESSAGE,
        type_name=f".tensorflow.{type_name}",
        label=_FIELD.LABEL_OPTIONAL,
    )
