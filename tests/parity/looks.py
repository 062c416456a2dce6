"""Looks at ways to iterate: each is what people write, with what stands for a loader in the place of theirs."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Concatenate, ParamSpec, TypeAlias

from tests.parity.chains import Chain
from tests.parity.seen import Facts, Seen, batch_of, labels, numbers

P = ParamSpec("P")
Opener: TypeAlias = "Callable[[], Any]"
"""Opens loaders of one pipeline: `run(*most)` begins a pass for each, and leaves it behind so many batches (None: at
its end), `epochs(count)` begins all in one call; most loaders can be iterated over, too."""
Make: TypeAlias = "Callable[[Chain], Opener]"
"""Makes a pipeline of a chain."""


@dataclass(frozen=True)
class Look:
    """What people write."""

    see: Callable[[Make], Seen | Facts]
    chains: tuple[Chain, ...]
    """The pipelines; a peer that can build them has the habit."""
    needs: str = ""
    """What a way must have: "iterator", or "length"."""
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

    def but(self, **fields: Any) -> Look:
        return replace(self, **fields)


ITERATOR, LENGTH = "iterator", "length"


def look(needs: str = "") -> Callable[[Callable[Concatenate[Make, P], Seen | Facts]], Callable[P, Look]]:
    """Make a function that looks at what pipelines give into one that takes the rest of its arguments before.

    `needs`: what a way must have: "iterator", or "length".
    """

    def decorated(see: Callable[Concatenate[Make, P], Seen | Facts]) -> Callable[P, Look]:
        @functools.wraps(see)
        def given(*arguments: P.args, **options: P.kwargs) -> Look:
            chains = tuple(one for one in arguments if isinstance(one, Chain))
            return Look(lambda make: see(make, *arguments, **options), chains, needs)

        return given

    return decorated


@look()
def passes(make: Make, chain: Chain, *most: int | None, parts: int = 1) -> Seen:
    return Seen(make(chain)().run(*most), parts)


@look()
def epochs(make: Make, chain: Chain, count: int) -> Seen:
    return Seen(make(chain)().epochs(count))


@look()
def a_loader_for_each(make: Make, chain: Chain, count: int) -> Seen:
    opener = make(chain)
    return Seen([opener().run(None)[0] for _ in range(count)])


@look()
def each_made_anew(make: Make, *chains: Chain) -> Seen:
    return Seen([make(chain)().run(None)[0] for chain in chains])


@look(ITERATOR)
def firsts(make: Make, chain: Chain, count: int) -> Seen:
    loader = make(chain)()
    return Seen([[next(iter(loader))] for _ in range(count)])


@look(ITERATOR)
def two_at_once(make: Make, chain: Chain) -> Seen:
    loader = make(chain)()
    turns = list(zip(iter(loader), iter(loader), strict=True))
    return Seen([[one[at] for one in turns] for at in range(2)])


@look(ITERATOR)
def ended_by_another(make: Make, chain: Chain) -> Facts:
    """Ask an iterator for more where another one over the same object has begun."""
    loader = make(chain)()
    first, second = iter(loader), iter(loader)
    try:
        return {"batches": [len(next(one)) for one in (first, second, first)]}
    except Exception as error:
        return {"error": type(error).__name__}


@look(ITERATOR)
def behind_the_end(make: Make, chain: Chain) -> Facts:
    iterator = iter(make(chain)())
    return {"batches": len(list(iterator)), "more": [next(iterator, None) for _ in range(2)]}


@look(ITERATOR)
def beside_a_shorter_one(make: Make, longer: Chain, shorter: Chain) -> Seen:
    loaders = make(shorter)(), make(longer)()
    beside = [list(side) for side in zip(*zip(*loaders, strict=False), strict=True)]
    return Seen([*beside, *(loader.run(None)[0] for loader in loaders)])


@look(ITERATOR)
def kept(make: Make, chain: Chain) -> Seen:
    return Seen([list(map(batch_of, list(make(chain)().again())))])


@look(LENGTH)
def counted(make: Make, chain: Chain) -> Facts:
    from tqdm import tqdm

    bar = tqdm(make(chain)().again(), disable=True)
    return {"total": bar.total, "numbers": [number for number, _ in enumerate(bar, start=1)]}


@look(LENGTH)
def lengths(make: Make, *chains: Chain) -> Facts:
    def length(chain: Chain) -> int | str:
        try:
            return len(make(chain)())
        except TypeError:
            return "TypeError"

    return {"len": [length(chain) for chain in chains]}


@look(ITERATOR)
def for_ever(make: Make, chain: Chain, count: int, parts: int) -> Seen:
    endless = itertools.chain.from_iterable(itertools.repeat(make(chain)()))
    return Seen([list(itertools.islice(endless, count))], parts)


@look(ITERATOR)
def validated_in_the_middle(make: Make, train: Chain, val: Chain) -> Seen:
    """Pass over another pipeline, twice, while one stands in the middle of a pass."""
    training, validation = iter(make(train)()), make(val)()
    first = next(training)
    looks = validation.run(None, 1)
    return Seen([[first, *training], *looks])


@look()
def leaks(make: Make, val: Chain, train: Chain) -> Facts:
    """Find out whether three passes over a training set have had elements of a validation set."""
    several = [[frozenset(numbers(one)) for one in make(chain)().run(None, None, None)] for chain in (val, train)]
    sides = [frozenset[float]().union(*passes) for passes in several]
    return {
        "leaks": bool(sides[0] & sides[1]),
        "together": len(sides[0] | sides[1]),
        "validated on": labels(several[0]),
    }


@look()
def ending(make: Make, chain: Chain) -> Facts:
    try:
        return {"batches": [len(one) for one in make(chain)().run(2)]}
    except Exception as error:
        return {"error": type(error).__name__}


@look()
def mixes_repetitions(make: Make, chain: Chain) -> Facts:
    """Count how often elements come in one pass, and whether the first batch has each of them."""
    (one,) = make(chain)().run(None)
    counts = Counter(numbers(one))
    whole = len({row["i"] for row in one[0]}) == len(counts)
    return {"elements": counts.total(), "each element": max(counts.values()), "first part whole": whole}


@look()
def of_a_mixture(make: Make, chain: Chain, small: int) -> Facts:
    """Look at the elements of the small set, with the numbers from `small` on, in two passes over a mixture."""
    held = [[row for batch in one for row in batch if row["i"] >= small] for one in make(chain)().run(None, None)]
    draws = [[row["x"] for row in rows] for rows in held]
    again = all(len({row["i"] for row in rows}) < len(rows) for rows in held)
    return {"comes again": again, "other draws": len({*draws[0], *draws[1]}) == len(draws[0]) + len(draws[1])}


def ours(see: Callable[..., Seen | Facts], *chains: Chain, **fields: Any) -> Look:
    """Look at loaders of ours, in ways that are named by `only`."""
    fields = {"peers": {}, **fields}
    return Look(lambda make: see(*(make(chain)() for chain in chains)), chains, **fields)
