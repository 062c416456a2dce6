"""An exchange of two operators, with what it does to what the user meant."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from benchmarks.guard.ops import GuardStep

Harm: TypeAlias = Literal["harmful", "harmless", "doubtful"]
"""Harmful: something that the user asked for is lost, stronger, weaker or elsewhere.  Harmless: nobody would mind.
Doubtful: some would."""
GuardHalf: TypeAlias = Literal["tune", "judge"]
COLUMNS_OF_ALL = ("image", "mask", "boxes", "pixels", "points", "label", "audio", "text", "video", "row")


@dataclass(frozen=True)
class Exchange:
    """Two operators, what stands before and behind them, and what becomes of results if they change places.

    The label was given by what the exchange does, before any guard was run on it.
    """

    name: str
    first: GuardStep
    second: GuardStep
    label: Harm = "harmless"
    why: str = ""
    before: tuple[GuardStep, ...] = ()
    behind: tuple[GuardStep, ...] = ()
    columns: tuple[str, ...] = COLUMNS_OF_ALL
    """What elements have."""

    @property
    def harmful(self) -> bool:
        """Whether something is lost that the user asked for."""
        return self.label == "harmful"

    @property
    def half(self) -> GuardHalf:
        """The half that it belongs to, by its name alone: one finds a bound, the other one judges it."""
        return "tune" if zlib.crc32(self.name.encode()) % 2 else "judge"

    @property
    def steps(self) -> tuple[GuardStep, ...]:
        """All operators in the user's order."""
        return (*self.before, self.first, self.second, *self.behind)


@dataclass(frozen=True)
class ExchangeKind:
    """Makes exchanges of operators of one kind."""

    name: str
    before: tuple[GuardStep, ...] = ()
    behind: tuple[GuardStep, ...] = ()
    second: GuardStep | None = None
    """What usually is the second operator."""

    def exchange(
        self,
        label: Harm,
        first: GuardStep,
        why: str,
        *,
        second: GuardStep | None = None,
        before: Sequence[GuardStep] = (),
        behind: Sequence[GuardStep] = (),
    ) -> Exchange:
        """Return an exchange; `before` stands behind the group's own."""
        follows = second or self.second
        assert follows is not None
        steps = (*self.before, *before, first, follows, *behind, *self.behind)
        behind = (*behind, *self.behind)
        context = f" ({' '.join(step.name for step in (*before, *behind))})" if before or behind else ""
        return Exchange(
            f"{self.name}: {first.name} / {follows.name}{context}",
            first,
            follows,
            label,
            why,
            (*self.before, *before),
            behind,
            _columns(steps),
        )


def _columns(steps: Sequence[GuardStep]) -> tuple[str, ...]:
    """Return the columns that operators read; all of them if one takes the whole element."""
    named = {step.column for step in steps}
    return COLUMNS_OF_ALL if None in named else (*sorted(name for name in named if name), "label")


def step_on(column: str | None) -> Callable[..., GuardStep]:
    """Return what makes steps on a column, or on the whole element."""

    def make(name: str, fn: Callable[..., Any], *, random: bool = False, kind: Any = "map") -> GuardStep:
        return GuardStep(name, fn, column, random, kind)

    return make


on_image, on_audio, on_text, on_video, on_row, on_mask, on_element = map(
    step_on, ("image", "audio", "text", "video", "row", "mask", None)
)
