"""From measurements to medians and ratios, or to the reason why there is none.  Pure: numbers in, a verdict out."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

MOST_FOREIGN = 0.15
"""Share of the machine's processors that other programs may use in a fair round."""


@dataclass(frozen=True)
class Measurement:
    """One side in one round."""

    round: int
    rate: float | None = None
    """Elements (or bytes) per second; for times: 1 / seconds."""
    cpu_s: float = 0.0
    """CPU seconds of the side's whole process tree per element."""
    memory: int = 0
    """The tree's proportional set size in bytes when its turn was over."""
    daemons: int = 0
    """Of which Ray's own processes."""
    worker: int = 0
    """Private memory of the largest worker of Ray."""
    foreign: float = 0.0
    """Share of the processors that programs outside of the benchmark used meanwhile."""
    others: float = 0.0
    """Share that the paused sides and the harness used."""
    longest_wait_s: float = 0.0
    error: str | None = None


@dataclass(frozen=True)
class SideSummary:
    """One side over all rounds."""

    median: float
    least: float
    most: float
    cpu_s: float
    memory: int
    worker: int
    rounds: int


@dataclass(frozen=True)
class SideComparison:
    """Ours against a peer."""

    ours: str
    peer: str
    target: float | None
    ratio: float | None
    """Median of the ratios within the rounds, since a machine's speed wanders; None: it would not be fair."""
    least: float | None = None
    most: float | None = None
    """Of these ratios."""
    cpu: float | None = None
    """Median of the ratios of CPU time per element: it tells smaller differences, where both do the same work."""
    reason: str = ""
    """Why there is no ratio, or which rounds were left out."""
    bound: str = ""
    """What ours can at best be as fast as,"""
    limit: float | None = None
    """and its ratio to the peer in the same rounds."""

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None where there is no target or no ratio."""
        return None if self.ratio is None or self.target is None else self.ratio >= self.target


def summary(measured: Sequence[Measurement], most_foreign: float = MOST_FOREIGN) -> SideSummary | None:
    """Return medians and extremes over the quiet rounds, or over all where none was quiet; None without a rate."""
    done = [m for m in measured if m.rate is not None]
    quiet = [m for m in done if m.foreign <= most_foreign] or done
    rates = [m.rate for m in quiet if m.rate is not None]
    if not rates:
        return None
    return SideSummary(
        statistics.median(rates),
        min(rates),
        max(rates),
        statistics.median(m.cpu_s for m in quiet),
        max(m.memory for m in quiet),
        max(m.worker for m in quiet),
        len(rates),
    )


def compare(
    ours: str,
    peer: str,
    measured: Mapping[str, Sequence[Measurement]],
    target: float | None = None,
    most_foreign: float = MOST_FOREIGN,
    bound: str = "",
) -> SideComparison:
    """Compare two sides by the rounds in which both ran and other programs left the machine to them.

    There is no ratio if a side is missing or failed in any round, or if fewer than half of the rounds were fair.
    `bound`: a side that ours cannot be faster than, compared with the peer likewise.
    """
    if bound and bound != peer and measured.get(bound):
        limit = compare(bound, peer, measured, None, most_foreign).ratio
        return replace(compare(ours, peer, measured, target, most_foreign), bound=bound, limit=limit)

    def refused(reason: str) -> SideComparison:
        return SideComparison(ours, peer, target, None, reason=reason)

    for name in (ours, peer):
        if not measured.get(name):
            return refused(f"{name} was not measured")
        for m in measured[name]:
            if m.error is not None:
                return refused(f"{name} failed in round {m.round + 1}: {m.error}")
    a, b = ({m.round: m for m in measured[name]} for name in (ours, peer))
    rounds = sorted(a.keys() | b.keys())
    fair = [n for n in rounds if n in a and n in b and max(a[n].foreign, b[n].foreign) <= most_foreign and a[n].rate]
    if 2 * len(fair) < len(rounds) or not fair:
        return refused(_disturbed(rounds, fair, [*a.values(), *b.values()], most_foreign))
    pairs = [(a[n].rate or 0.0, b[n].rate or 0.0) for n in fair]
    if min(theirs for _, theirs in pairs) <= 0:
        return refused(f"{peer} delivered nothing in a round")
    ratios = [mine / theirs for mine, theirs in pairs]
    used = [a[n].cpu_s / b[n].cpu_s for n in fair if b[n].cpu_s]
    cpu = statistics.median(used) if used else None
    left_out = len(rounds) - len(fair)
    reason = f"{left_out} of {len(rounds)} rounds left out: other load" if left_out else ""
    return SideComparison(ours, peer, target, statistics.median(ratios), min(ratios), max(ratios), cpu, reason)


def _disturbed(rounds: Sequence[int], fair: Sequence[int], measured: Iterable[Measurement], limit: float) -> str:
    worst = max((m.foreign for m in measured), default=0.0)
    return (
        f"other programs used more than {limit:.0%} of the processors in {len(rounds) - len(fair)} of {len(rounds)} "
        f"rounds (up to {worst:.0%})"
    )


def rotated(names: Sequence[str], number: int) -> list[str]:
    """Return the order of the sides in a round: each begins once, so that none always follows the same one."""
    shift = number % len(names) if names else 0
    return [*names[shift:], *names[:shift]]


def mismatches(shapes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Say which sides deliver batches of other columns, types or shapes than the first one: they do other work."""
    names = list(shapes)
    return [
        f"{name} delivers {dict(shapes[name])} where {names[0]} delivers {dict(shapes[names[0]])}"
        for name in names[1:]
        if shapes[name] != shapes[names[0]]
    ]
