"""Decoding ``tf.train.Example`` without TensorFlow: its few message types, declared at run time."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from pecan_ray.plan.splits import Element

_FIELD = descriptor_pb2.FieldDescriptorProto
_LISTS = {"BytesList": _FIELD.TYPE_BYTES, "FloatList": _FIELD.TYPE_FLOAT, "Int64List": _FIELD.TYPE_INT64}
_KINDS = {"bytes_list": "BytesList", "float_list": "FloatList", "int64_list": "Int64List"}


def parse_example(record: bytes) -> Element:
    """Return the features of a serialized Example; raises ValueError if it is none.

    One value becomes bytes, int or np.float32; none or several become an array (of objects for bytes,
    float32 or int64).  A feature without any kind is left out.
    """
    example = _example_class()()
    try:
        example.ParseFromString(record)
    except message.DecodeError as error:
        raise ValueError(f"not a serialized tf.train.Example: {error}") from error
    columns = {}
    for name in sorted(example.features.feature):
        feature = example.features.feature[name]
        kind = feature.WhichOneof("kind")
        if kind is not None:
            columns[name] = _value(kind, getattr(feature, kind).value)
    return columns


def _value(kind: str, values: Any) -> Any:
    if kind == "bytes_list":
        if len(values) == 1:
            return values[0]
        array = np.empty(len(values), dtype=object)
        array[:] = list(values)
        return array
    if kind == "float_list":
        return np.float32(values[0]) if len(values) == 1 else np.array(values, dtype=np.float32)
    return int(values[0]) if len(values) == 1 else np.array(values, dtype=np.int64)


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
            value.options.packed = True
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, kind_name) in enumerate(_KINDS.items(), start=1):
        _add_message(feature, name, number, kind_name).oneof_index = 0
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=_FIELD.TYPE_STRING, label=_FIELD.LABEL_OPTIONAL)
    _add_message(entry, "value", 2, "Feature")
    _add_message(features, "feature", 1, "Features.FeatureEntry").label = _FIELD.LABEL_REPEATED
    _add_message(file.message_type.add(name="Example"), "features", 1, "Features")
    return file


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
