"""Where a pipeline is cut: operators before the cut run on a remote worker, those behind it where its batches arrive.

    seconds(cut) = max( bytes(cut) / link, host_s(cut) )
    dollars(cut) = seconds(cut) * host + bytes(cut) * transfer + worker_s(cut) * worker

All of a row.  The link and the trainer's host are what remote workers share, so the slower of both decides how many
rows come; a worker's own time only decides how many workers are needed.  Without prices seconds are compared, with
prices dollars, for which a second of a row counts as one that the host is paid for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pecan_ray.plan.prices import GB, HOUR_S

LINK_BYTES_PER_S = 1.25e9
"""Of a link that nothing was sent over yet: 10 Gbit/s, what most nodes without accelerators have."""
MIN_GAIN = 0.1
"""A cut must save this share: what is measured with one element is not more exact."""


@dataclass(frozen=True)
class TailOp:
    """One of the last operators of a pipeline, of which all before the cut run on the worker."""

    name: str
    bytes_in: float
    """Bytes of a row, in the column that it changes."""
    bytes_out: float
    """Bytes that it makes of these."""
    seconds: float
    """CPU seconds for a row."""


@dataclass(frozen=True)
class LinkCosts:
    """What the way from a remote worker to the trainer costs, and those at its ends."""

    bytes_per_s: float = LINK_BYTES_PER_S
    transfer_per_gb: float = 0.0
    """$ for a gigabyte."""
    worker_per_hour: float = 0.0
    host_per_hour: float = 0.0
    """$ for an hour of the trainer's host; 0: there are no prices."""


@dataclass(frozen=True)
class PipelineCut:
    """Where a pipeline is cut, and why there."""

    first: int
    """Number of the first operator behind the cut; that of all operators: everything runs on the worker."""
    why: str


def choose_cut(ops: Sequence[TailOp], link: LinkCosts, *, always: bool = False) -> PipelineCut:
    """Return where to cut before one of the last operators, or behind all of them.

    `always`: cut where a row has the fewest bytes, whatever that costs.
    """
    whole = len(ops)
    if always:
        best = min(range(whole + 1), key=lambda cut: (_bytes(ops, cut), -cut))
    else:
        best = min(range(whole + 1), key=lambda cut: (_cost(ops, cut, link), -cut))
    sizes = f"a row has {_bytes(ops, best):,.0f} bytes there and {_bytes(ops, whole):,.0f} at the end"
    if best == whole:
        return PipelineCut(whole, f"a cut before the end saves nothing: {sizes}")
    names = ", ".join(op.name for op in ops[best:])
    if always:
        return PipelineCut(best, f"{names} run where batches arrive: {sizes}")
    before, after = _cost(ops, whole, link), _cost(ops, best, link)
    if after > (1 - MIN_GAIN) * before:
        return PipelineCut(
            whole, f"{names} stay on the worker: the cut saves {1 - after / before:.0%} of a row's costs"
        )
    of_rows = f"{_seconds(ops, whole, link):.3g} s of link and host, {_seconds(ops, best, link):.3g} s with the cut"
    return PipelineCut(best, f"{names} run where batches arrive: {sizes}; a row takes {of_rows}, at {_rate(link)}")


def _rate(link: LinkCosts) -> str:
    billed = f" and ${link.transfer_per_gb:g} for a GB" if link.transfer_per_gb else ""
    return f"{link.bytes_per_s / 1e6:,.0f} MB/s{billed}"


def _bytes(ops: Sequence[TailOp], cut: int) -> float:
    return ops[cut].bytes_in if cut < len(ops) else ops[-1].bytes_out


def _seconds(ops: Sequence[TailOp], cut: int, link: LinkCosts) -> float:
    return max(_bytes(ops, cut) / link.bytes_per_s, sum(op.seconds for op in ops[cut:]))


def _cost(ops: Sequence[TailOp], cut: int, link: LinkCosts) -> float:
    """Return the cost of a row: dollars, or seconds where there are no prices."""
    seconds = _seconds(ops, cut, link)
    if not (link.host_per_hour or link.transfer_per_gb):
        return seconds
    worker_s = sum(op.seconds for op in ops[:cut])
    hourly = (seconds * link.host_per_hour + worker_s * link.worker_per_hour) / HOUR_S
    return hourly + _bytes(ops, cut) / GB * link.transfer_per_gb
