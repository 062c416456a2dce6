"""A pipeline as what Keras' `fit` takes."""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import keras

from pecan_ray.errors import ColumnError, PlanError, StateError, join_names
from pecan_ray.integrations.keras_iterators import KerasIterators
from pecan_ray.integrations.keras_prefetch import PrefetchLimit
from pecan_ray.integrations.passes import OnBreak, check_on_break
from pecan_ray.plan.splits import Element

logger = logging.getLogger("pecan_ray")

ColumnNames: TypeAlias = str | Sequence[str]
"""One column, or several, which Keras gets as a dict."""


class KerasBatches(keras.utils.PyDataset):  # type: ignore[misc]  # Keras has no types
    """Batches of one job for ``model.fit``, whichever backend Keras has: `steps` of them make an epoch.

    An iterator that Keras makes begins a new pass where the one before was left in the middle (``evaluate(steps=3)``);
    one that Keras keeps over its epochs (``fit(steps_per_epoch=3)``) goes on.
    """

    def __init__(
        self,
        begin: Callable[..., Any],
        columns: Sequence[ColumnNames],
        *,
        what: str,
        steps: int,
        on_break: OnBreak = "new",
        shares: bool = False,
    ) -> None:
        """`begin` starts the job, at a `state` if it is given one.

        `columns`: of the inputs, the targets, and the weights, as far as there are.
        `shares`: the job is a reader of a group, which gives no pass anew.
        """
        check_on_break(what, on_break)
        super().__init__()
        self._begin, self._columns, self._what, self._steps = begin, columns, what, steps
        self._batches: Any = None
        self._state: Mapping[str, Any] | None = None
        """Of the job that is to begin."""
        self._closed = False
        """Nobody has made an iterator since the job was closed."""
        self._changing = threading.Lock()
        """Held while the job begins or ends: TensorFlow asks for batches in a thread of its own."""
        self._fetching = threading.RLock()
        """Held while a batch is fetched and counted, and while a state is taken: what the job has given and what is
        counted here are the same then."""
        self._can_continue, self._shares = on_break == "continue", shares
        self._iterators = KerasIterators(steps, self._next, self._leave)
        self.prefetch_limit = PrefetchLimit()
        """Told by `InputBackup` what was used."""

    @property
    def num_batches(self) -> int:
        """Batches of an epoch."""
        self._note_created()
        self._loosen(sys._getframe(1).f_locals.get("self"))
        return self._steps

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        self.prefetch_limit.wait(self._iterators.fetched)
        with self._fetching:
            batch: tuple[Any, ...] = self._iterators.next()
        return batch

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        self._note_created(by_hand=True)
        for index in range(self._steps):
            yield self[index]

    def on_epoch_begin(self) -> None:
        """Keras begins with an epoch."""
        self._closed = False
        self._iterators.begin_epoch()

    def on_epoch_end(self) -> None:
        """Keras has ended an epoch, or begins with the first one; the job goes on."""
        self._iterators.end_epoch()

    def state_dict(self, *, used: int | None = None) -> dict[str, Any]:
        """Return where the job stands, as plain values, once the batch that is being fetched has come.

        `used`: so many batches of Keras' present epoch were trained on, of those that it has fetched; None: all.
        """
        with self._fetching:
            if self._batches is None:
                return {"batches": self._state}
            return {"batches": self._batches.state_dict(ahead=self._iterators.num_prefetched(used))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken: what runs now ends, and the next batch is of another job."""
        if not isinstance(state, Mapping) or "batches" not in state:
            raise StateError(f"{self._what}: this is no state of it: pass what its own state_dict() has returned.")
        self._end()
        self._state = state["batches"]

    def close(self) -> None:
        """End the job; the next iterator or epoch begins another one.

        An iterator that was made before gives nothing more: behind a `fit` that failed, TensorFlow goes on to ask for
        batches, until it has as many as it keeps ahead.
        """
        self._closed = True
        self._end()

    def _loosen(self, adapter: Any) -> None:
        """Let Keras' adapter hold these batches weakly, so that the job ends when their user drops them.

        TensorFlow keeps whatever a dataset of Python calls until the program ends, and through it the adapter.
        """
        # The name is private to Keras, and nothing else leads to the adapter; a test notices when it is gone.
        if type(adapter).__module__.startswith("keras.") and getattr(adapter, "py_dataset", None) is self:
            adapter.py_dataset = weakref.proxy(self)

    def _note_created(self, *, by_hand: bool = False) -> None:
        self._closed = False
        self.prefetch_limit.refresh_state()
        self._iterators.note_created(by_hand=by_hand)

    def _end(self) -> None:
        self.prefetch_limit.refresh_state()
        with self._changing:
            batches, self._batches, self._state = self._batches, None, None
        self._iterators.forget()
        if batches is not None:
            batches.close()

    def _leave(self) -> None:
        if self._batches is None or self._can_continue:
            return
        if not self._shares:
            self._batches.leave_epoch()
            return
        self._can_continue = True
        logger.warning(
            "%s: a pass was left in the middle, and a reader that shares goes on there: it gets other batches than at "
            "its beginning. Give what is only looked at (evaluate(steps=...), validation_steps=...) a pipeline of its "
            'own, without share, or say on_break="continue" where going on is meant',
            self._what,
        )

    def _next(self) -> tuple[Any, ...]:
        batches = self._running()
        try:
            batch = next(batches)
        except StopIteration:
            self._check_not_closed()
            raise PlanError(
                f"{self._what}: all of its epochs were given, and Keras asks for more: {self._steps} batches for each "
                "of its own. Pass to_keras(epochs=None), or steps=... where an epoch has fewer batches than len(pipe)."
            ) from None
        return tuple(_chosen(batch, names) for names in self._columns)

    def _running(self) -> Any:
        """Return the job, which begins if there is none."""
        with self._changing:
            self._check_not_closed()
            if self._batches is None:
                state, self._state = self._state, None
                self._batches = self._begin() if state is None else self._begin(state=state)
            return self._batches

    def _check_not_closed(self) -> None:
        if self._closed:
            raise PlanError(f"{self._what}: it was closed, and this iterator was made before. Make another one.")


def _chosen(batch: Element, names: ColumnNames) -> Any:
    if isinstance(names, str):
        return _column(batch, names)
    return {name: _column(batch, name) for name in names}


def _column(batch: Element, name: str) -> Any:
    """Return a column, or all whose names begin with that one and "/": parts of a dict or a tuple of a dataset."""
    if name in batch:
        return batch[name]
    parts = list(dict.fromkeys(one[len(name) + 1 :].partition("/")[0] for one in batch if one.startswith(f"{name}/")))
    if not parts:
        raise ColumnError(f"to_keras: the batch has no column {name!r}; it has {join_names(batch)}.")
    found = {part: _column(batch, f"{name}/{part}") for part in parts}
    # Parts that are called 0, 1, ... are those of a tuple.
    return tuple(found.values()) if parts == [str(place) for place in range(len(parts))] else found
