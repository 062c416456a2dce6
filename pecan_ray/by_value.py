"""Pickling for other processes: what the program's main script defines goes by value, since they run another script.

Large arrays of sources are pickled by name, apart from what holds them: they are put once on each node.
"""

from __future__ import annotations

import copyreg
import io
import mmap
import os
import pickle
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import cloudpickle
import numpy as np

SPAWNED_MAIN = "__mp_main__"
"""The main script in a process that multiprocessing has spawned; cloudpickle knows `__main__` alone."""


NamedArrays: TypeAlias = "dict[str, np.ndarray[Any, Any]]"
SHARED_BYTES = 1 << 20
"""Arrays of so many bytes are put apart: smaller ones are sent as soon as they are mapped."""


@dataclass(frozen=True)
class SharedArray:
    """A large array that is pickled by its name where it can be had by that."""

    name: str
    array: np.ndarray[Any, Any] = field(compare=False, repr=False)


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        super().__init__(io.BytesIO(data))
        self._arrays = arrays

    def persistent_load(self, pid: Any) -> SharedArray:
        """Return what was put apart under a name."""
        return SharedArray(pid, self._arrays[pid])


def name_here(value: object) -> str:
    """Return what tells a value from all others that are alive, in this process and elsewhere on its machine."""
    return f"{os.getpid()}-{id(value):x}"


def dumps(value: Any, *, maps_by_path: bool = False) -> bytes:
    """Pickle a value, with functions and classes that other processes cannot import.

    `maps_by_path`: memory maps of files that were opened for reading are opened again by their paths, and not copied.
    """
    _register_main()
    if not maps_by_path:
        return bytes(cloudpickle.dumps(value))
    written = io.BytesIO()
    _WithMapsByPath(written).dump(value)
    return written.getvalue()


class _WithMapsByPath(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    def reducer_override(self, obj: Any) -> Any:
        if type(obj) in (np.memmap, np.ndarray) and (place := _place_in_file(obj)) is not None:
            return _mapped, place
        return super().reducer_override(obj)


def _place_in_file(array: np.ndarray[Any, Any]) -> tuple[Any, ...] | None:
    """Return where a map of a file, or a view of one, lies in it; None where it cannot be opened again so."""
    whole: Any = array
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    if not (isinstance(whole, np.memmap) and isinstance(whole.base, mmap.mmap)):
        return None
    # Not one that may be written to: a process that opens the file later may see something else. Nor a view
    # that runs backwards, which begins behind its first byte.
    of_file = whole.mode == "r" and whole.filename is not None
    if not of_file or not array.nbytes or array.dtype.hasobject or min(array.strides, default=0) < 0:
        return None
    begin = whole.offset + array.ctypes.data - whole.ctypes.data
    is_map = type(array) is np.memmap
    return str(whole.filename), array.dtype, begin, array.shape, array.strides, is_map


def _mapped(
    path: str, dtype: np.dtype[Any], offset: int, shape: tuple[int, ...], strides: tuple[int, ...], is_map: bool
) -> Any:
    nbytes = dtype.itemsize + sum((count - 1) * stride for count, stride in zip(shape, strides, strict=True))
    try:
        mapped = np.memmap(path, np.uint8, "r", offset, (nbytes,))
        array = np.ndarray(shape, dtype, mapped, 0, strides)
        return array.view(np.memmap) if is_map else array
    except (OSError, ValueError) as error:
        raise OSError(
            f"the memory map of {path}, which the pipeline holds, cannot be opened here: {error}. Put the file where "
            "all nodes see it, or hold a copy, numpy.array(map)"
        ) from error


def dumps_with_arrays(value: Any, arrays: NamedArrays) -> bytes:
    """Pickle a value as `dumps` does with `maps_by_path`; large arrays of sources are added to `arrays` by name."""

    def name_of(part: Any) -> str | None:
        if type(part) is not SharedArray:
            return None
        arrays[part.name] = part.array
        return part.name

    _register_main()
    file = io.BytesIO()
    pickler = _WithMapsByPath(file)
    pickler.persistent_id = name_of
    pickler.dump(value)
    return file.getvalue()


def loads_with_arrays(data: bytes, arrays: Mapping[str, np.ndarray[Any, Any]]) -> Any:
    """Unpickle what `dumps_with_arrays` has pickled, with its arrays."""
    return _Unpickler(data, arrays).load()


def _register_main() -> None:
    main = sys.modules.get(SPAWNED_MAIN)
    if main is not None and main.__name__ == SPAWNED_MAIN:  # else it is `__main__` under another name
        cloudpickle.register_pickle_by_value(main)


def _as_bytes(value: np.bytes_) -> tuple[type[np.bytes_], tuple[bytes]]:
    return np.bytes_, (bytes(value),)


def _as_text(value: np.str_) -> tuple[type[np.str_], tuple[str]]:
    return np.str_, (str.__str__(value),)  # its own `str` leaves them out too


# NumPy itself leaves out the zeros at the end of these when they are pickled.
copyreg.pickle(np.bytes_, _as_bytes)
copyreg.pickle(np.str_, _as_text)
