"""Results of functions that write into the same memory with each call: what is kept of them is copied in time.

A decoder with an output buffer returns one array again and again, and a generator may yield one dict.  Who holds a
value is told by the number of references to it: where nobody but the element holds an array and its memory, no later
call can write there.  Anything else is copied before the next call, but for what the function was given, which is the
engine's.  Objects of classes that are not known here stay as they are.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from sys import getrefcount
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from pecan_ray.engines.foreign import as_array, has_memory, is_pil_image, is_tensor, shares_storage
from pecan_ray.engines.nesting import check_nesting
from pecan_ray.sources.copies import UNCHANGING, own_copy

FIXED = UNCHANGING | {np.dtype(code).type for code in "?bhilqBHILQefdFDmMSU"}
"""Types of values into which nobody can write."""
BOOLEANS = frozenset({bool})
"""Those of them that a filter may answer."""
MOST_SEEN = 256
"""Arrays of functions that are remembered: more than threads have buffers."""
SAMPLED = 4096
"""Items of such an array by which its contents are compared."""
NOTHING: Mapping[str, Any] = MappingProxyType({})
"""What a source was given."""


class HeldValue(NamedTuple):
    """A value that somebody else holds, and the copy that takes its place."""

    original: Any
    own: Any


def own_element(value: dict[str, Any], before: Mapping[str, Any], given: Any, held: list[HeldValue]) -> dict[str, Any]:
    """Return an element that no later call of the functions that made it can change; note in `held` what was copied.

    `given` is what they were given, and `before` what that held then.  Raises `NestedValueError` for what holds itself.
    """
    # Decision 108: a generator of the user's may hold this dict and fill it again for the next element.
    if value is not given and getrefcount(value) > _ELEMENT_ALONE:
        held.append(HeldValue(value, value := dict(value)))  # what it holds belongs to the other one too
    for name, one in dict.items(value):
        if type(one) in FIXED or (before.get(name) is one and type(one) is not dict):
            continue
        # The usual result ends here, in about 0.1 us: an array that the element alone holds.
        if type(one) is np.ndarray and getrefcount(one) <= _COLUMN_ALONE and one.base is None and one.flags.owndata:
            if one.dtype.hasobject:
                break
            continue
        break
    else:
        return value
    # Both names refer to the last value, and would be counted as its holders below.
    del name, one
    check_nesting(value)
    values = list(dict.values(value))
    own = _OwnValues(before.values(), held).of(values)
    changed = {name: one for name, one, other in zip(dict.keys(value), own, values, strict=True) if one is not other}
    value.update(changed)
    return value


def own_value(value: Any, before: Mapping[str, Any], given: Any, held: list[HeldValue]) -> Any:
    """Return a value, or an element, as `own_element` does; nobody but the call of this may hold it for the caller."""
    if isinstance(value, dict):
        return own_element(value, before, given, held)
    if type(value) in FIXED or value is given:
        return value
    element = {"": value}
    del value
    return own_element(element, before, element, held)[""]


class _OwnValues:
    """What becomes of the values of one element, down to those that containers hold."""

    def __init__(self, given: Iterable[Any], held: list[HeldValue]) -> None:
        """`given`: the values that the function was given."""
        self._given: set[int] = set()
        # Also its owner: a crop that a function returns shows memory of what it was given, which is the engine's.
        for one in given:
            self._given |= {id(one), id(_owner(one))}
        self._held = held
        self._copies: dict[int, Any] = {}
        """By identity: one array in two columns stays one."""
        self._seen: set[int] = set()
        """Containers that were looked into: one may hold itself."""

    def of(self, values: list[Any]) -> list[Any]:
        """Return them, or copies of those that somebody else holds; each lies in `values` and in its container."""
        # Counted before anything is copied or replaced, since that changes the numbers of references.
        alone = _are_private(values)
        owners_alone = _are_private([_owner(one) for one in values])
        return [
            self._own(one, by_itself, owner_by_itself)
            for one, by_itself, owner_by_itself in zip(values, alone, owners_alone, strict=True)
        ]

    def _own(self, one: Any, alone: bool, owner_alone: bool) -> Any:
        kind = type(one)
        if kind in FIXED or (id(one) in self._given and kind is not dict):
            return one
        if kind in (list, tuple, dict):
            return self._container(one, alone or kind is tuple or id(one) in self._given)
        if not self._is_constant(one, alone, owner_alone):
            return self._copy(one)
        if isinstance(one, np.ndarray) and one.dtype.hasobject:
            return self._objects(one)
        return one

    def _is_constant(self, one: Any, alone: bool, owner_alone: bool) -> bool:
        """Tell whether nobody writes into a value any more; `owner_alone`: nobody else refers to its memory's owner."""
        if is_tensor(one):
            return alone and not shares_storage(one)
        if not isinstance(one, np.ndarray):
            return alone or not _may_be_written(one)
        owner = _owner(one)
        fixed = not one.flags.writeable and not isinstance(owner, np.ndarray)  # a library says that nobody writes
        return fixed or id(owner) in self._given or (alone and _keeps_to_itself(owner, owner is one or owner_alone))

    def _container(self, one: Any, alone: bool) -> Any:
        """Return a list, tuple or dict that holds nothing of others', itself if it is nobody else's and does not."""
        if not alone:
            return self._copy(one)
        values = list(one.values() if type(one) is dict else one)
        if id(one) in self._seen or FIXED.issuperset(map(type, values)):
            return one
        self._seen.add(id(one))
        own = self.of(values)
        if all(a is b for a, b in zip(own, values, strict=True)):
            return one
        return dict(zip(one, own, strict=True)) if type(one) is dict else type(one)(own)

    def _objects(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return an array of objects that holds nothing of others'."""
        values = array.ravel().tolist()
        if FIXED.issuperset(map(type, values)) or id(array) in self._seen:
            return array
        self._seen.add(id(array))
        own = self.of(values)
        if all(a is b for a, b in zip(own, values, strict=True)):
            return array
        return np.fromiter(own, object, len(own)).reshape(array.shape)

    def _copy(self, one: Any) -> Any:
        # A copy for each object, not for each place: two columns that share an array go on sharing one.
        if id(one) not in self._copies:
            self._copies[id(one)] = own = own_copy(one)
            self._held.append(HeldValue(one, own))
        return self._copies[id(one)]


class SharedBufferError(Exception):
    """Several threads got one array at the same time, whose contents change."""


class SharedBuffers:
    """The arrays that functions of a chain hold themselves: who had them last, when, and with which contents."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Guards what was seen."""
        self._seen: OrderedDict[tuple[int, int], _LastSeen] = OrderedDict()

    def __reduce__(self) -> tuple[type[SharedBuffers], tuple[()]]:
        # It is pickled with functions for other processes: a lock and weak references cannot be, and start anew there.
        return SharedBuffers, ()

    def now(self) -> float:
        """Return when a call begins; minus infinity before anything was seen."""
        return time.perf_counter() if self._seen else -math.inf

    def check(self, held: Iterable[HeldValue], started: float) -> None:
        """Raise `SharedBufferError` for an array with changing contents that two threads got at the same time."""
        for original, own in held:
            array = own if isinstance(own, np.ndarray) else as_array(own)
            if array is None or array.dtype.hasobject:
                continue
            owner = _owner(original)
            holder = owner if isinstance(owner, np.ndarray) or is_tensor(owner) else original
            if is_tensor(holder) and holder._base is not None:
                holder = holder._base
            place = _address(original)
            sample = array.reshape(-1)[:: max(1, array.size // SAMPLED)].tobytes()
            self._note((place, array.nbytes), holder, sample, started)

    def _note(self, key: tuple[int, int], holder: Any, sample: bytes, started: float) -> None:
        thread = threading.get_ident()
        with self._lock:
            last = self._seen.pop(key, None)
            # Only the same object counts: its address may belong to another array by now.
            changes = at_once = False
            if last is not None and last.holder() is holder:
                changes = last.changes or last.sample != sample
                at_once = last.at_once or (last.thread != thread and last.at >= started)
            self._seen[key] = _LastSeen(weakref.ref(holder), thread, sample, time.perf_counter(), changes, at_once)
            if len(self._seen) > MOST_SEEN:
                self._seen.popitem(last=False)
        if changes and at_once:
            raise SharedBufferError(
                "it returns one array again and again, and several threads call it: what one of them gets may be the "
                "result of another one. Return a copy (array.copy()), or let each thread have an array of its own "
                "(threading.local()). With map(..., processes=True), or Config(threads_per_worker=1), one thread "
                "calls it"
            )


class _LastSeen(NamedTuple):
    holder: weakref.ref[Any]
    """The array, or tensor, that has the memory: as long as it is there nobody else has."""
    thread: int
    sample: bytes
    at: float
    changes: bool
    """It did not always have the same contents."""
    at_once: bool
    """Some thread got it while another one had called."""


def _owner(value: Any) -> Any:
    """Return the array whose memory an array shows, or what else that belongs to; of other values nothing."""
    if not isinstance(value, np.ndarray):
        return None
    while isinstance(value.base, np.ndarray):
        value = value.base
    return value if value.base is None else value.base


def _address(value: Any) -> int:
    """Return where an array or a tensor has its memory; of an image, which does not tell, what names it."""
    if isinstance(value, np.ndarray):
        return value.ctypes.data
    return int(value.data_ptr()) if is_tensor(value) and has_memory(value) else id(value)


def _keeps_to_itself(owner: Any, alone: bool) -> bool:
    """Tell whether nobody writes into the memory of an owner that only an array of ours refers to, if `alone`."""
    if isinstance(owner, np.ndarray):
        return alone and bool(owner.flags.owndata)
    if is_tensor(owner):
        return alone and not shares_storage(owner)
    return isinstance(owner, bytes) or (alone and type(owner).__name__ == "PyCapsule")


def _references(objects: list[Any]) -> list[int]:
    return [getrefcount(objects[place]) for place in range(len(objects))]


def _are_private(objects: list[Any]) -> list[bool]:
    """Tell of each whether nobody refers to it but a container of ours, or its views there, and the list itself."""
    # Each further place of an object adds two references: its container's, and the list's.
    times = Counter(map(id, objects))
    return [
        count <= _VALUE_ALONE + 2 * (times[id(one)] - 1)
        for one, count in zip(objects, _references(objects), strict=True)
    ]


def _element_references() -> int:
    def count_references(value: dict[str, Any]) -> int:
        return getrefcount(value)

    value: dict[str, Any] = {}
    return count_references(value)


def _column_references() -> int:
    for _, one in dict.items({"": np.empty(0)}):
        return getrefcount(one)
    raise AssertionError


def _value_references() -> int:
    element = {"": np.empty(0)}
    return _references(list(element.values()))[0]


# How many references Python counts, which differs between its versions:
_ELEMENT_ALONE = _element_references()
"""To an element that its caller holds, and nobody else."""
_COLUMN_ALONE = _column_references()
"""To a column of it, in a loop over its items."""
_VALUE_ALONE = _value_references()
"""To a value of a container and of a list of its values."""


def _may_be_written(one: Any) -> bool:
    """Tell whether a value is of those that are known here, and can be written into."""
    return is_pil_image(one) or isinstance(one, (list, dict, set, bytearray, np.void))
