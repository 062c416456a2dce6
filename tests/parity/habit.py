"""What a row of the table is, and how rows look at a way to iterate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from tests.parity.chains import Chain
from tests.parity.seen import Facts, Pass, facts


class Opened(Protocol):
    """A loader, of a peer or of ours; most of them can be iterated over, too."""

    def run(self, *most: int | None) -> list[Pass]:
        """Begin a pass for each, and leave it behind so many batches; None: at its end."""
        ...

    def epochs(self, count: int) -> list[Pass]: ...


Opener: TypeAlias = "Callable[[], Any]"
"""Opens loaders of one pipeline: `Opened`."""
Make: TypeAlias = "Callable[[Chain], Opener]"
"""Makes a pipeline of a chain."""


@dataclass(frozen=True)
class Seen:
    """Passes that were seen, each of which is cut into `parts` before they are compared."""

    passes: Sequence[Pass]
    parts: int = 1

    def stats(self) -> Facts:
        return facts(self.passes, self.parts)


@dataclass(frozen=True)
class Look:
    see: Callable[[Make], Seen | Facts]
    chains: tuple[Chain, ...]
    """The pipelines; a peer that can build them has the habit."""
    needs: str = ""
    """What a way must have: "iterator", or "length"."""


@dataclass(frozen=True)
class Habit:
    name: str
    """What people write."""
    look: Look
    says: str
    """What happens here."""
    stats: Facts = field(default_factory=dict)
    """Some of what is right, said again; all of it where no peer has the habit or all do otherwise."""
    differs: Mapping[str, str] = field(default_factory=dict)
    """By peer: "what it does: why we do otherwise on purpose"."""
    peers: Mapping[str, Callable[[], Seen | Facts]] | None = None
    """What peers do, if it is not what the look sees of the peers in general."""
    only: tuple[str, ...] = ()
    """The ways that have this habit; none: all that have what the look needs."""
    without: Mapping[str, str] = field(default_factory=dict)
    """By way: why it does not have this habit."""
    passes: tuple[int, ...] = ()
    """The numbers of the passes that are seen."""
    steps: int | None = None
    """Batches of a pass, for libraries that must be told where they are not known."""
    on_workers: tuple[str, ...] = ()
    """The ways in which the short form of the tests has this row on a cluster too."""
