"""The operators that choose and reorder rows, on blocks of them; a None goes through all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import takewhile
from typing import TypeAlias

from pecan_ray.engines.counting import element_bytes
from pecan_ray.engines.items import Item, ItemIterator
from pecan_ray.engines.positions import SkippedPositions
from pecan_ray.engines.python.column_chain import BlockChain, sees_columns
from pecan_ray.engines.python.columns import Table
from pecan_ray.engines.python.element_time import ElementTime
from pecan_ray.engines.python.operators import given_on
from pecan_ray.engines.python.ordered_results import ITEM_BYTES, ResultsInOrder, up_to_an_error
from pecan_ray.engines.python.prefetch_results import prefetch_results
from pecan_ray.engines.python.shuffle_buffer import ShuffleBuffer
from pecan_ray.engines.python.threads import Threads
from pecan_ray.engines.reading import Run
from pecan_ray.engines.row_block import PIECE_ROWS, RowBlock
from pecan_ray.engines.side_by_side import Streams
from pecan_ray.engines.slots import HeapSlots
from pecan_ray.plan.operators import Batch, ElementOp, Op, Prefetch, Repeat, Shuffle, Skip, Take, is_idle
from pecan_ray.sampling.random_keys import generator, shuffle_key

Blocks: TypeAlias = Iterator["RowBlock | None"]


def takes_blocks(op: Op) -> bool:
    """Tell whether an operator takes blocks of rows as well as elements."""
    return isinstance(op, (Shuffle, Take, Skip, Repeat, Prefetch)) or is_idle(op)


def use_blocks(ops: Sequence[Op]) -> bool:
    """Tell whether operators at a plan's beginning are faster with blocks of rows."""

    def can(op: Op) -> bool:
        return takes_blocks(op) or (isinstance(op, ElementOp) and sees_columns(op))

    # Maps and filters alone are no reason here: in front of a batch the engine asks for blocks by itself
    # (`ItemStream.before`).
    return any(isinstance(op, (Shuffle, Take, Skip)) for op in takewhile(can, ops))


def blocks_of(runs: Iterable[Run | None], streams: Streams) -> Blocks:
    """Yield runs in pieces, of which none lies in two turns of its split."""
    turn = left = PIECE_ROWS if streams.count == 1 else streams.turn
    for run in runs:
        if run is None:
            yield None
            continue
        block = RowBlock.of_run(run)
        while block.rows:
            part, block = block.cut(0, min(left, block.rows)), block.cut(min(left, block.rows), block.rows)
            # Cut at turns: rows of the next split begin a block of their own, so a shuffle draws them as
            # elements do.
            left = left - part.rows or turn
            yield from part.chunks()


def items_of(blocks: Blocks) -> ItemIterator:
    """Yield the rows as elements."""
    for block in blocks:
        if block is None:
            yield None
            continue
        for piece in block.chunks():
            yield from given_on(piece.own_items())


def mapped(blocks: Blocks, chain: BlockChain, pool: Threads) -> Blocks:
    """Run functions of single columns on rows, some pieces at a time, in order, as `operators.mapped` does."""
    pace = ElementTime()

    def run(piece: RowBlock) -> tuple[RowBlock, BaseException | None]:
        started = time.perf_counter()
        found = chain.run(piece)
        pace.note(time.perf_counter() - started, piece.rows)
        return found

    failed: BaseException | None = None
    with closing(ResultsInOrder(pool, run, lambda found: _bytes_of(found[0]))) as results:
        for block in up_to_an_error(blocks):
            if block is None:
                yield None
                continue
            if isinstance(block, BaseException):
                failed = block
                break
            start = 0
            while start < block.rows:
                # Pieces of 3 ms of work, which one thread finishes before the others stand idle.
                stop = min(block.rows, start + max(1, int(min(PIECE_ROWS, pace.elements))))
                results.add(block.cut(start, stop))
                start = stop
                while results.is_due():
                    yield from _rows_of(*results.take()[1])
        while results:
            yield from _rows_of(*results.take()[1])
    if failed is not None:
        raise failed


def _bytes_of(block: RowBlock) -> int:
    """Return about how many bytes rows take, which are like the first one."""
    return block.rows * (element_bytes(block.first) + ITEM_BYTES) if block.rows else 0


def _rows_of(block: RowBlock, failed: BaseException | None) -> Blocks:
    if block.rows:
        yield block
    if failed is not None:
        raise failed


def shuffled(blocks: Blocks, op: Shuffle, seed: int, number: int) -> Blocks:
    """Draw at random from a buffer that is kept full, what `operators.shuffled` draws of the same rows."""
    buffer: ShuffleBuffer | None = None
    for block in blocks:
        if block is None:
            yield None
            continue
        if buffer is None:
            buffer = ShuffleBuffer(op.buffer, generator(shuffle_key(op, seed, block.lease.epoch, number)))
        if (drawn := buffer.add(block)) is not None:
            yield drawn
    if buffer is not None:
        yield from buffer.rest()


def taken(blocks: Blocks, count: int) -> Blocks:
    """Keep the first rows, and ask for no more."""
    left = count
    while left:
        try:
            block = next(blocks)
        except StopIteration:
            return
        if block is not None:
            block = block.cut(0, min(left, block.rows))
            left -= block.rows
        yield block


def skipped(blocks: Blocks, count: int, skipped_positions: SkippedPositions) -> Blocks:
    """Leave out the first rows."""
    left = count
    for block in blocks:
        if block is None or not left:
            yield block
            continue
        out = min(left, block.rows)
        skipped_positions.add(block.parts(0, out), elements=out)
        left -= out
        if out < block.rows:
            yield block.cut(out, block.rows)


def prefetched(blocks: Blocks, count: int) -> Blocks:
    """Have a thread keep about so many rows ready."""
    # Blocks instead of rows, rounded up: `prefetch(1)` keeps one block ready.
    return prefetch_results([blocks], -(-count // PIECE_ROWS))


def batched(blocks: Blocks, op: Batch, items_of: Callable[[RowBlock], list[Item]]) -> ItemIterator:
    """Put `size` rows at a time together; `items_of` makes elements of those that hold more than plain values."""
    runs = (block if block is None or block.is_serializable else items_of(block) for block in blocks)
    return Table(op, HeapSlots()).items(runs)
