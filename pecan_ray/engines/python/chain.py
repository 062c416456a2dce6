"""A run of operators on one element: map, filter and flat_map, one function call after the other."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from pecan_ray.engines.batch_rows import RowsMissingError, check_rows
from pecan_ray.engines.contract import EngineOptions
from pecan_ray.engines.counting import EVERY, Counts, element_bytes
from pecan_ray.engines.element_errors import apply_error_policy, end_child, op_error
from pecan_ray.engines.fork_tracker import forks
from pecan_ray.engines.global_generators import global_generators
from pecan_ray.engines.items import Item, deep_copy, leading
from pecan_ray.engines.nesting import NestedValueError
from pecan_ray.engines.own_results import HeldValue, SharedBufferError, SharedBuffers, own_element
from pecan_ray.engines.positions import SkippedPositions
from pecan_ray.engines.python.complete_calls import Call, complete_call
from pecan_ray.engines.python.element_outputs import ElementOutput, output_of, split_into_parts
from pecan_ray.engines.python.processes import InProcess
from pecan_ray.engines.python.retry_calls import is_retryable, retry_call
from pecan_ray.errors import (
    ColumnError,
    ElementError,
    OutputTypeError,
    is_interrupt,
    join_names,
    to_str,
)
from pecan_ray.plan.operators import ELEMENTS, Collate, ElementOp, Filter, FlatMap, Map, Subset, wants_epoch, wants_rng
from pecan_ray.plan.own_attributes import own_attribute
from pecan_ray.plan.shape import name_of_last
from pecan_ray.plan.splits import OUTPUT_BITS
from pecan_ray.sampling.random_keys import ThreadGenerator, element_key
from pecan_ray.sampling.subsets import is_member

_generator = ThreadGenerator()
SILENT_CALLS = 8
"""Arrays or lists in a row for which a map of a column returns None: then it is no value that is missing."""

ELEMENT_WANTED = "a dict from column name to value"
"""What a map of elements must return, in words."""


@dataclass(frozen=True)
class ChainStep:
    """An operator, ready to be called."""

    op: ElementOp
    call: Call
    wants_rng: bool
    wants_epoch: bool
    filters: bool
    """Whether it is asked for keeping an element."""

    @functools.cached_property  # asked for each call
    def wants_keywords(self) -> bool:
        """Return whether its function is given more than an element, or a column of one."""
        return self.wants_rng or self.wants_epoch

    @property
    def makes_elements(self) -> bool:
        """Return whether its results are whole elements."""
        return self.op.on is None and not self.filters


class ChainProtocol(Protocol):
    """Operators that run on items."""

    def run(self, item: Item) -> list[Item]:
        """Return what becomes of an item."""
        ...

    def run_all(self, items: Sequence[Item]) -> list[Item]:
        """Return what becomes of several items."""
        ...

    def prefetch_calls(self, items: Sequence[Item]) -> None:
        """Make the calls of a first operator in another process, for items that are about to be run."""
        ...

    @property
    def is_out_of_process(self) -> bool:
        """Return whether several calls had better go together, since they go to another process."""
        ...


class Chains:
    """Several chains, one behind the other."""

    def __init__(self, chains: Sequence[ChainProtocol]) -> None:
        self._first, self._others = chains[0], chains[1:]

    def run(self, item: Item) -> list[Item]:
        """Return what becomes of an item."""
        return self._on(self._first.run(item))

    def run_all(self, items: Sequence[Item]) -> list[Item]:
        """Return what becomes of several items."""
        return self._on(self._first.run_all(items))

    def prefetch_calls(self, items: Sequence[Item]) -> None:
        """Make the calls of a first operator in another process, for items that are about to be run."""
        self._first.prefetch_calls(items)

    def _on(self, items: list[Item]) -> list[Item]:
        for chain in self._others:
            items = chain.run_all(items)
        return items

    @property
    def is_out_of_process(self) -> bool:
        """Return whether several calls had better go together, since they go to another process."""
        return self._first.is_out_of_process


class Chain:
    """Runs its operators on items; errors follow the `on_error` policy."""

    def __init__(
        self,
        ops: Sequence[ElementOp],
        options: EngineOptions,
        skipped_positions: SkippedPositions,
        call: Callable[[ElementOp], Call] = complete_call,
        counts: Counts | None = None,
    ) -> None:
        self.steps = [
            ChainStep(op, call(op), wants_rng(op.fn), wants_epoch(op.fn), isinstance(op, Filter)) for op in ops
        ]
        self._options = options
        self._skipped_positions = skipped_positions
        self._has_flat_map = any(isinstance(op, FlatMap) for op in ops)
        # Filters make no values, so nothing has to be asked about who holds them.
        self._changes = any(not isinstance(op, Filter) for op in ops)
        self._has_collate = any(isinstance(op, Collate) for op in ops)
        self._may_lose_rows = self._changes and not self._has_flat_map
        """Whether rows of a batch must be compared: a `flat_map` may make any number of them."""
        self._buffers = SharedBuffers()
        self._none_results = {
            step.op.name: 0 for step in self.steps if step.op.on is not None and isinstance(step.op, Map)
        }
        """Maps of a column that have returned nothing but None so far, and for how many arrays or lists."""
        self.counts = counts
        self.is_new = global_generators.key is not None
        """No element has gone through: modules that functions import may not be imported."""

    def run(self, item: Item) -> list[Item]:
        """Return what becomes of an item; positions of what is dropped go to the skipped ones."""
        kept = None
        try:
            # Before the functions run, because they may write into the element that is to be kept.
            kept = deep_copy(item.value) if self._options.on_error == "quarantine" else None
            return self.attempt(item)
        except ElementError as error:
            apply_error_policy(item, error, self._options.on_error, self._skipped_positions, kept)
            return []

    def attempt(self, item: Item) -> list[Item]:
        """Return what becomes of an item; raises `ElementError`, or `ColumnError`, and has changed nothing then.

        Functions may have written into the arrays of the item nevertheless.
        """
        keeps_rows = item.members is not None and not self._has_collate
        given = dict(item.value) if keeps_rows and self._may_lose_rows else None
        try:
            items = self._spread(item) if self._has_flat_map else self._run_linear(item)
            if given is not None and items:
                check_rows(self._producers(), given, items[0].value, item.rows)
        except (NestedValueError, RowsMissingError, RecursionError) as error:  # in what functions have made
            raise op_error(self._producers(), item, error) from error
        # Decision 96: modules that a function imports at its first call may have seeded global generators.
        if self.is_new:
            self.is_new = False
            global_generators.reset_seeds()
        for one in items:
            if type(one.value) is not dict:
                one.value = self._as_dict(one)
            if keeps_rows:
                one.rows = max(1, leading(one.value))  # 0 rows would mean that it carries positions only
        return items

    def _as_dict(self, item: Item) -> dict[str, Any]:
        """Return an element that is of a class of the user's as a dict, whose methods raise nothing."""
        try:
            return dict(item.value)
        except BaseException as error:
            if is_interrupt(error):
                raise
            raise op_error(name_of_last([step.op for step in self.steps]), item, error) from error

    def run_all(self, items: Sequence[Item]) -> list[Item]:
        """Run several items; the calls of a first operator in another process go there in one message."""
        self.prefetch_calls(items)
        return [made for item in items for made in self.run(item)]

    def prefetch_calls(self, items: Sequence[Item]) -> None:
        """Make the calls of a first operator in another process, for items that are about to be run."""
        if self.is_out_of_process and len(items) > 1:
            self._prefetch_calls(self.steps[0], items)

    def _prefetch_calls(self, step: ChainStep, items: Sequence[Item]) -> None:
        assert isinstance(step.call, InProcess)
        step.call.prefetch([arguments for item in items if (arguments := self._arguments(step, item)) is not None])

    @property
    def is_out_of_process(self) -> bool:
        """Return whether the first operator runs in another process, to which several calls had better go together."""
        return bool(self.steps) and isinstance(self.steps[0].call, InProcess)

    def _arguments(self, step: ChainStep, item: Item) -> tuple[Any, dict[str, Any]] | None:
        """Return what a step's function is called with; None for an element without its column."""
        on = step.op.on
        if on is not None and on not in item.value:
            return None
        return (item.value if on is None else item.value[on]), self.keywords(step, item, item.output)

    def keywords(self, step: ChainStep, item: Item, output: int) -> dict[str, Any]:
        keywords = {"rng": self._rng(step.op, item, output)} if step.wants_rng else {}
        return {**keywords, "epoch": item.lease.epoch} if step.wants_epoch else keywords

    def _run_linear(self, item: Item) -> list[Item]:
        value = item.value
        before, started = (self._values_given(value), self._buffers.now()) if self._changes else ({}, 0.0)
        counts = None if self.counts is None else self._counts_of(item)
        for step in self.steps:
            size = element_bytes(value) if counts else 0
            kept = True
            if not step.filters:
                value = self._map(step, value, item, item.output)
            else:
                kept = self._passes(step, value, item, item.output)
            if counts:
                counts.add(step.op.name, 1, size, [value] if kept else [])
            if not kept:
                self._skipped_positions.add(item.parts)
                return []
        if self._changes:
            # Whatever a function has made for another one here is used up before it is called again.
            held: list[HeldValue] = []
            value = own_element(value, before, item.value, held)
            if held:
                self._check_buffers(held, item, started)
        item.value = value
        return [item]

    def _values_given(self, value: dict[str, Any]) -> dict[Any, Any]:
        """Return the values that the functions are given, which are ours: nobody else writes into them."""
        if not self._has_collate:
            return dict(value)
        elements = enumerate(value[ELEMENTS])
        return {(row, name): one for row, element in elements for name, one in element.items()}

    def _check_buffers(self, held: list[HeldValue], item: Item, started: float) -> None:
        try:
            self._buffers.check(held, started)
        except SharedBufferError as error:
            raise op_error(self._producers(), item, error) from error

    def _producers(self) -> str:
        """Name the operators of which one has made what is looked at behind the last one."""
        return " or ".join(step.op.name for step in self.steps if not step.filters)

    def _counts_of(self, item: Item) -> Counts | None:
        """Return where to count an element, if it is one of those that are counted."""
        if (
            self.counts is None
            # By number and not by chance: all operators count the same elements, so what goes in and out of
            # each can be compared.
            or (item.lease.split.index + item.element) % EVERY
            or item.lease.epoch != self._options.count_epoch
        ):
            return None
        return self.counts if item.members is None else None

    def _spread(self, item: Item) -> list[Item]:
        """Run a chain in which an element can become several."""
        pieces = [ElementOutput(item.value, item.output, item.width or 1 << OUTPUT_BITS)]
        counts = self._counts_of(item)
        for step in self.steps:
            given, size = len(pieces), sum(element_bytes(piece.value) for piece in pieces) if counts else 0
            pieces = self._pieces_behind(step, pieces, item)
            if counts:
                counts.add(step.op.name, given, size, [piece.value for piece in pieces])
        return self._outputs(item, pieces)

    def _pieces_behind(self, step: ChainStep, pieces: list[ElementOutput], item: Item) -> list[ElementOutput]:
        """Return what one operator makes of the outputs of an element."""
        if isinstance(step.op, FlatMap):
            return [one for piece in pieces for one in self._flat(step, piece, item)]
        if isinstance(step.op, Filter):
            return [piece for piece in pieces if self._passes(step, piece.value, item, piece.output)]
        return [piece._replace(value=self._map_output(step, piece, item)) for piece in pieces]

    def _outputs(self, item: Item, pieces: list[ElementOutput]) -> list[Item]:
        """Return what an item has become, as items that carry its positions."""
        # Without a width for each output (a batch, or more outputs than positions) the last one carries all
        # positions.
        if item.width and all(piece.width for piece in pieces):
            return split_into_parts(item, pieces, self._skipped_positions)
        items = [output_of(item, piece, []) for piece in pieces]
        if items:
            items[-1].parts = item.parts
        else:
            self._skipped_positions.add(item.parts)
        return items

    def _map_output(self, step: ChainStep, piece: ElementOutput, item: Item) -> Any:
        """Return what a map makes of one output of several: it is called for the next one before this is used up."""
        before, started = dict(piece.value), self._buffers.now()
        value = self._map(step, piece.value, item, piece.output)
        held: list[HeldValue] = []
        value = own_element(value, before, piece.value, held)
        if held:
            self._check_buffers(held, item, started)
        return value

    def _map(self, step: ChainStep, value: Any, item: Item, output: int) -> Any:
        result = self._call(step, value, item, output)
        if isinstance(step.op, Collate):
            result = dict(result) if isinstance(result, Mapping) else result
        elif step.op.on is not None:
            if self._none_results:
                self._check_inplace_result(step.op, value, result, item)
            if isinstance(result, types.CoroutineType):
                raise self.wrong_type(step.op, item, result, "a value")
            # A new dict: if a later operator fails, the item must be as it was given.
            return {**value, step.op.on: result}
        if not isinstance(result, dict):
            raise self.wrong_type(step.op, item, result, ELEMENT_WANTED)
        return result

    def _check_inplace_result(self, op: ElementOp, value: Any, result: Any, item: Item) -> None:
        """Raise `OutputTypeError` for a function that changes arrays in place and returns nothing."""
        if result is not None:
            self._none_results.pop(op.name, None)
        # Only values that can be changed in place: None for a number is a decision of the function.
        elif op.name in self._none_results and isinstance(value[op.on], (np.ndarray, list, bytearray)):
            self._none_results[op.name] += 1
            if self._none_results[op.name] >= SILENT_CALLS:
                raise OutputTypeError(
                    f"{op.name} returned None for each of {SILENT_CALLS} values, the last one of {item.where()}: it "
                    f"must return the new value of column {to_str(op.on)}, also where it changes the given one in "
                    "place. Where None is meant, map the whole element.",
                    op=op.name,
                    **item.place,
                    column=op.on,
                    ends_job=True,
                )

    def _passes(self, step: ChainStep, value: Any, item: Item, output: int) -> bool:
        if isinstance(step.op, Subset):
            return item.has_passed or is_member(step.op, item.lease.split.index, item.element)
        # A filter is not asked twice: it may have a state of its own
        # (docs/decisions/exactly-once.md#4-workers-return-leftovers).
        result = item.has_passed or self._call(step, value, item, output)
        if not isinstance(result, bool):
            raise self.wrong_type(step.op, item, result, "whether to keep the element: True or False")
        return result

    def _flat(self, step: ChainStep, piece: ElementOutput, item: Item) -> list[ElementOutput]:
        """Divide an output's positions evenly among what it becomes: the same however often it is computed."""
        result = self._call(step, piece.value, item, piece.output)
        if not isinstance(result, list):
            raise self.wrong_type(step.op, item, result, "a list of elements (or another iterable of them)")
        on = step.op.on
        values = result if on is None else [{**piece.value, on: one} for one in result]
        # In whole numbers, so that a second run cuts at the same positions
        # (docs/decisions/exactly-once.md#5-positions-and-spans).
        bounds = [piece.width * number // max(len(values), 1) for number in range(len(values) + 1)]
        pieces = []
        for number, value in enumerate(values):
            if not isinstance(value, dict):
                raise self.wrong_type(step.op, item, value, "dicts from column name to value")
            pieces.append(ElementOutput(value, piece.output + bounds[number], bounds[number + 1] - bounds[number]))
        return pieces

    def _call(self, step: ChainStep, value: Any, item: Item, output: int) -> Any:
        op, argument = step.op, value
        if op.on is not None:
            if op.on not in value:
                raise ColumnError(
                    f"{op.name}: there is no column {op.on!r} in {item.where()}; there are {join_names(value)}.",
                    op=op.name,
                    column=op.on,
                )
            argument = value[op.on]
        # `call_stacks` finds `step`, `item` and `output` in this frame by their names.
        generation = forks.generation
        try:
            keywords = self.keywords(step, item, output) if step.wants_keywords else {}
            result = step.call(argument, **keywords)
        except BaseException as error:  # sys.exit() in a function ends no thread of ours in silence
            if forks.generation != generation:
                end_child(op.name, item, error)
            result = self.result_behind(error, step, argument, item, output)
        if forks.generation != generation:
            end_child(op.name, item)
        return result

    def result_behind(self, error: BaseException, step: ChainStep, argument: Any, item: Item, output: int) -> Any:
        """Return what a call that has failed returns when it is repeated; raises `OpError` if it is not, or in vain."""
        op = step.op
        if is_interrupt(error):
            raise error
        if not is_retryable(error, argument):
            raise op_error(op.name, item, error, op.on) from error
        failed = partial(op_error, op.name, item, column=op.on)
        return retry_call(
            # Keywords anew: the failed call may have drawn from its generator, and a repeated one has to draw
            # the same.
            lambda: step.call(argument, **self.keywords(step, item, output)),
            f"{op.name}: {item.where()}",
            failed,
        )

    def _rng(self, op: ElementOp, item: Item, output: int) -> Any:
        """Return an operator's random numbers; those of several by name, for one that stands in their place."""
        seed, lease, element = self._options.seed, item.lease, item.element
        if own_attribute(op.fn, "draws_by_name", False):
            # An operator that stands for several draws by their names, so that a rewrite changes no random
            # number.
            return lambda name: _generator.at(element_key(seed, lease, element, output, name))
        return _generator.at(element_key(seed, lease, element, output, op.name))

    def wrong_type(self, op: ElementOp, item: Item, result: Any, wanted: str) -> OutputTypeError:
        hint = ""
        if isinstance(result, types.CoroutineType):
            result.close()  # else Python warns that nobody has awaited it
            hint = " Let the function wait for it: several threads of a worker call it at a time."
        elif result is None:
            hint = " Did it forget its `return`?"
        if op.on is None and not isinstance(op, Filter) and not isinstance(result, types.CoroutineType):
            hint += ' To change one column by a function of its value, pass on="column".'
        return OutputTypeError(
            f"{op.name} returned {type(result).__name__} for {item.where_all()}, but it must return {wanted}.{hint}",
            op=op.name,
            **item.place,
            column=op.on,
        )


def run_in_order(chain: ChainProtocol, items: Sequence[Item]) -> tuple[list[Item], BaseException | None]:
    """Return what becomes of items up to the first one that fails, and its error."""
    done: list[Item] = []
    try:
        chain.prefetch_calls(items)
        for item in items:
            done += chain.run(item)
    except BaseException as error:
        return done, error
    return done, None
