"""Values as JSON and bytes, which can be read without running anybody's code.

What is plain: numbers, texts, bytes, None, tuples, lists and dictionaries of them, and NumPy's arrays and numbers.
Bytes go where the caller puts them, and JSON holds what the caller finds them by again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Protocol, TypeAlias

import numpy as np

Written: TypeAlias = Any
"""What `json` reads and writes."""
Get: TypeAlias = Callable[[Written], bytes | memoryview]
"""Finds bytes again; raises ValueError where there are none."""

PLAIN_KINDS = "biufcmMSU"
LONGEST_INT = 4096
"""Bits: Python refuses to read numbers with many more digits from a text."""


class Put(Protocol):
    """Keeps bytes that come in parts, and returns what they are found by."""

    def __call__(self, *parts: bytes) -> Written:
        """Keep the parts, one behind the other."""
        ...


class NotPlainError(Exception):
    """A value is of a class of its own: its type is the message."""


def encode(value: Any, put: Put) -> Written:
    """Return a value as JSON; raises `NotPlainError`."""
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    # By exact types throughout: a subclass of int or dict has behaviour that JSON would lose.
    if kind is int and value.bit_length() <= LONGEST_INT:
        return value
    encoder = ENCODERS.get(kind)
    if encoder is not None:
        return encoder(value, put)
    if isinstance(value, np.generic) and kind is value.dtype.type:
        return {"scalar": [dtype_name(value.dtype), put(value.tobytes())]}
    raise NotPlainError(kind.__qualname__)


def _encode_array(array: np.ndarray[Any, Any], put: Put) -> Written:
    if not array.dtype.hasobject:
        return {"array": [dtype_name(array.dtype), list(array.shape), put(array.tobytes())]}
    if array.dtype != object:
        raise NotPlainError(f"array of {array.dtype}")
    items = array.ravel().tolist()
    # Columns of texts and bytes are common and long, so they are two blobs and not a JSON value for each
    # item.
    kinds = set(map(type, items))
    if kinds == {bytes}:
        return {"blobs": [list(array.shape), _lengths(items, put), put(*items)]}
    if kinds == {str}:
        # Lengths are counted in characters, and cut again behind decoding; Python's texts may hold single
        # surrogates.
        joined = "".join(items).encode("utf-8", "surrogatepass")
        return {"texts": [list(array.shape), _lengths(items, put), put(joined)]}
    return {"objects": [list(array.shape), [encode(one, put) for one in items]]}


def _lengths(items: Sequence[bytes] | Sequence[str], put: Put) -> Written:
    return put(np.fromiter(map(len, items), np.int64, len(items)).tobytes())


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return the name of a type of plain items; raises `NotPlainError` for others."""
    if dtype.itemsize and dtype.kind in PLAIN_KINDS and dtype.isbuiltin != 2:
        return dtype.str
    if dtype.type.__module__.partition(".")[0] == "ml_dtypes":
        return dtype.name
    raise NotPlainError(f"items of {dtype}")


def named_dtype(name: Written) -> np.dtype[Any]:
    """Return the type of a name; raises ValueError if it is none, or not plain."""
    if not isinstance(name, str):
        raise ValueError(f"{name!r} is no type of items")
    if name[:1] in "<>|=":
        try:
            dtype = np.dtype(name)
        except TypeError as error:
            raise ValueError(f"{name!r} is no type of items") from error
        # NumPy reads more than one type from a text: fields, and arrays within an item.
        if dtype.kind not in PLAIN_KINDS or not dtype.itemsize or dtype.fields is not None or dtype.shape:
            raise ValueError(f"items of type {name!r} are not plain")
        return dtype
    import ml_dtypes

    registered = getattr(ml_dtypes, name, None)
    if not (isinstance(registered, type) and issubclass(registered, np.generic)):
        raise ValueError(f"{name!r} is no type of items")
    return np.dtype(registered)


def decode(written: Written, get: Get) -> Any:
    """Return the value that was written; raises ValueError where it is damaged, or made to do harm."""
    if isinstance(written, list):
        return [decode(one, get) for one in written]
    if not isinstance(written, dict):
        return written
    if len(written) != 1:
        raise ValueError("a value has no type")
    ((kind, content),) = written.items()
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise ValueError(f"values of type {kind!r} are not known")
    try:
        return decoder(content, get)
    # Written bytes are input of others (docs/decisions/security.md#30-files-and-streams-run-no-code): damage
    # is a ValueError by name.
    except (TypeError, OverflowError, MemoryError) as error:
        raise ValueError(f"a value of type {kind!r} is damaged: {error}") from error


def whole(number: Written, least: int = 0) -> int:
    """Return a whole number that was written; raises ValueError if it is none or too small."""
    # True and 1.0 are equal to 1, and would pass as a number of rows.
    if type(number) is not int or number < least:
        raise ValueError(f"{number!r} is no whole number of at least {least}")
    return number


def shape_of(written: Written) -> tuple[int, ...]:
    """Return the shape of an array that was written."""
    if not isinstance(written, list):
        raise ValueError(f"{written!r} is no shape")
    return tuple(whole(length) for length in written)


def _decode_array(content: Written, get: Get) -> Any:
    name, written, found = content
    dtype, shape, data = named_dtype(name), shape_of(written), get(found)
    if len(data) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"an array of {len(data)} bytes does not have the shape {shape}")
    # By a bytearray, so that the array may be written into.
    return np.frombuffer(bytearray(data), dtype).reshape(shape)


def _decode_scalar(content: Written, get: Get) -> Any:
    name, found = content
    return _decode_array([name, [], found], get)[()]


def _decode_text(content: Written, get: Get) -> Any:
    text = decode(content, get)
    if not isinstance(text, (bytes, str)):
        raise ValueError(f"a {type(text).__name__} is no text of NumPy")
    return np.bytes_(text) if isinstance(text, bytes) else np.str_(text)


def _decode_dict(content: Written, get: Get) -> Any:
    return {decode(key, get): decode(one, get) for key, one in content}


def _decode_complex(content: Written, get: Get) -> Any:
    real, imaginary = content
    return complex(float(real), float(imaginary))


def _decode_objects(content: Written, get: Get) -> Any:
    written, items = content
    return _filled(shape_of(written), [decode(one, get) for one in items])


def _decode_blobs(content: Written, get: Get) -> Any:
    written, lengths, found = content
    data = memoryview(get(found))
    return _filled(shape_of(written), [bytes(data[start:end]) for start, end in _ranges(get(lengths), len(data))])


def _decode_texts(content: Written, get: Get) -> Any:
    written, lengths, found = content
    text = bytes(get(found)).decode("utf-8", "surrogatepass")
    return _filled(shape_of(written), [text[start:end] for start, end in _ranges(get(lengths), len(text))])


def _ranges(lengths: bytes | memoryview, total: int) -> list[tuple[int, int]]:
    """Return where values of these lengths begin and end."""
    if len(lengths) % 8:
        raise ValueError("lengths are damaged")
    sizes = np.frombuffer(lengths, np.int64).tolist()
    if min(sizes, default=0) < 0 or sum(sizes) != total:
        raise ValueError("lengths are not those of the values")
    return list(pairwise(accumulate(sizes, initial=0)))


def _filled(shape: tuple[int, ...], items: list[Any]) -> Any:
    if math.prod(shape) != len(items):
        raise ValueError(f"an array of {len(items)} items does not have the shape {shape}")
    array = np.fromiter(items, object, len(items))
    return array.reshape(shape)


_DECODERS: Mapping[str, Callable[[Written, Get], Any]] = {
    "float": lambda content, get: float(content),
    "bytes": lambda content, get: bytes(get(content)),
    "tuple": lambda content, get: tuple([decode(one, get) for one in content]),
    "dict": _decode_dict,
    "complex": _decode_complex,
    "array": _decode_array,
    "scalar": _decode_scalar,
    "text of NumPy": _decode_text,
    "objects": _decode_objects,
    "blobs": _decode_blobs,
    "texts": _decode_texts,
}


ENCODERS: dict[type, Callable[[Any, Put], Written]] = {
    float: lambda value, put: value if math.isfinite(value) else {"float": str(value)},
    bytes: lambda value, put: {"bytes": put(value)},
    list: lambda value, put: [encode(one, put) for one in value],
    tuple: lambda value, put: {"tuple": [encode(one, put) for one in value]},
    dict: lambda value, put: {"dict": [[encode(key, put), encode(one, put)] for key, one in value.items()]},
    complex: lambda value, put: {"complex": [str(value.real), str(value.imag)]},
    np.ndarray: _encode_array,
    # As scalars of NumPy they would lose the zeros at their end.
    np.bytes_: lambda value, put: {"text of NumPy": encode(bytes(value), put)},
    np.str_: lambda value, put: {"text of NumPy": encode(str.__str__(value), put)},
}
"""What JSON has no value for, by type."""
