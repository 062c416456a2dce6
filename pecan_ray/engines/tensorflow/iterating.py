"""Iterating over a dataset with little Python per element, and without waiting for the end of what runs behind it."""

from __future__ import annotations

import atexit
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import tensorflow as tf

T = TypeVar("T")

LOOK_S = 0.2
"""Seconds between looks of whoever waits for a graph: what is due is told to people, and nothing waits for it."""
EXIT_S = 5.0
"""Seconds that the end of the process waits for the end of its graphs, which end with their element: a call that is
slower is left."""
POOL_PER_THREAD = 3
"""Threads of a graph's pool for each element that may be at work."""


def pool_size(threads: int, sources: int = 1) -> int:
    """Return the threads of a graph's pool, for so many elements at work at a time."""
    # Decision 20: in a smaller pool, work waits for a thread while CPUs are idle.
    return POOL_PER_THREAD * threads + sources + 1


class Elements:
    """The elements of a dataset, computed on CPUs; None has none.

    TensorFlow ends an iterator where the last reference to it is given up, and waits there for its AUTOTUNE thread,
    which may sleep until its next turn: half a second at first, up to a minute later.  `close` has another thread wait.
    """

    def __init__(self, data: Any) -> None:
        # A worker never computes on an accelerator: it belongs to the trainer.
        with tf.device("/CPU:0"):
            # In a list, so that another thread can take the last reference away.
            self._held: list[Iterator[Any]] = [iter(()) if data is None else _iterator(data)]
        self._end: threading.Thread | None = None
        self.given = 0
        """Elements that have been computed."""
        _all.add(self)

    def __iter__(self) -> Elements:
        return self

    def __next__(self) -> Any:
        if not self._held:
            raise StopIteration
        found = next(self._held[0])
        self.given += 1
        return found

    @property
    def is_open(self) -> bool:
        """Return whether there may be more."""
        return bool(self._held)

    def draw(self) -> None:
        """Compute the next element before it is asked for; an error of it is raised when it is asked for."""
        first = _kept(self._held[0])
        self._held[0] = itertools.chain(first, self._held[0])

    def close(self) -> None:
        """Give the iterator up; there are no more elements."""
        held, self._held = self._held, []
        # No thread can be started any more then.
        if held and not sys.is_finalizing():
            self._end = threading.Thread(target=held.clear, name="pecan-end-of-graph", daemon=True)
            self._end.start()

    def join(self, seconds: float) -> None:
        """Wait for the end of the graph, but no longer than that."""
        if self._end is not None:
            self._end.join(seconds)


def while_waiting(results: Iterator[T], due: Callable[[], bool]) -> Iterator[T | None]:
    """Yield results, which a thread computes one by one, and None whenever something else is due meanwhile."""
    changed = threading.Condition()  # guards the three below
    ready: list[T] = []
    failed: list[BaseException] = []
    ended = False

    def run() -> None:
        nonlocal ended
        try:
            with tf.device("/CPU:0"):
                for result in results:
                    with changed:
                        ready.append(result)
                        changed.notify_all()
                        # One result at a time: this thread must not run ahead of whoever takes them.
                        changed.wait_for(lambda: not ready or ended)
                    if ended:
                        return
        except BaseException as error:
            failed.append(error)
        with changed:
            ended = True
            changed.notify_all()

    threading.Thread(target=run, name="pecan-graph", daemon=True).start()
    try:
        while True:
            with changed:
                changed.wait_for(lambda: ready or ended, LOOK_S)
                found: T | None = None
                if ready:
                    found = ready.pop()
                elif ended:
                    break
                changed.notify_all()
            if found is not None or due():
                yield found
    finally:
        with changed:
            ended = True
            changed.notify_all()
    if failed:
        raise failed[0]


_all: weakref.WeakSet[Elements] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """End all graphs while Python still answers them: later, a graph and the interpreter wait for each other."""
    graphs = list(_all)
    # All are given up before any is waited for, so that they end side by side.
    for elements in graphs:
        elements.close()
    for elements in graphs:
        elements.join(EXIT_S / len(graphs))


def _kept(elements: Iterator[T]) -> Iterator[T]:
    """Compute one element; return an iterator that yields it, or raises its error."""
    found = list[T]()
    error: tf.errors.OpError | None = None
    try:
        found.extend(itertools.islice(elements, 1))
    except tf.errors.OpError as raised:
        error = raised

    def kept() -> Iterator[T]:
        if error is not None:
            raise error
        yield from found

    return kept()


def _iterator(data: Any) -> Iterator[Any]:
    return DirectIterator(data) if _plain(data.element_spec) else iter(data)


def _plain(spec: Any) -> bool:
    """Tell whether a spec has nothing but tensors, in dicts and tuples of no subclass."""
    if type(spec) in (dict, tuple):
        return all(_plain(part) for part in (spec.values() if isinstance(spec, dict) else spec))
    return type(spec) is tf.TensorSpec


class DirectIterator:
    """A dataset of tensors in dicts and tuples, iterated by TensorFlow's operations themselves.

    `next(iter(data))` calls the same ones, with a quarter of a millisecond of Python around each: more than a batch of
    a few lines of text takes.
    """

    def __init__(self, data: Any) -> None:
        self._data = data  # its functions live as long as it does
        flat = tf.nest.flatten(data.element_spec)
        self._type_specs = {
            "output_types": [spec.dtype for spec in flat],
            "output_shapes": [spec.shape for spec in flat],
        }
        self._pack = _packing(data.element_spec)
        self._resource = tf.raw_ops.AnonymousIteratorV3(**self._type_specs)
        tf.raw_ops.MakeIterator(dataset=tf.data.experimental.to_variant(data), iterator=self._resource)

    def __iter__(self) -> DirectIterator:
        return self

    def __next__(self) -> Any:
        try:
            flat = tf.raw_ops.IteratorGetNext(iterator=self._resource, **self._type_specs)
        except tf.errors.OutOfRangeError:
            raise StopIteration from None
        return self._pack(iter(flat))


def _packing(spec: Any) -> Callable[[Iterator[Any]], Any]:
    """Return what puts tensors, in the order of `tf.nest.flatten`, into the places of a spec."""
    if isinstance(spec, dict):
        # `tf.nest.flatten` goes through dicts by their sorted names.
        parts = {name: _packing(spec[name]) for name in sorted(spec)}

        def packed(flat: Iterator[Any]) -> dict[str, Any]:
            found = {name: pack(flat) for name, pack in parts.items()}
            return {name: found[name] for name in spec}

        return packed
    if isinstance(spec, tuple):
        places = [_packing(part) for part in spec]
        return lambda flat: tuple(pack(flat) for pack in places)
    return next
