"""Looks at ways to iterate: each is what people write, with what stands for a loader in the place of theirs."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator

from tests.parity.chains import Chain
from tests.parity.habit import Look, Make, Seen
from tests.parity.seen import Batch, Facts, batch_of, labels, numbers

ITERATOR, LENGTH = "iterator", "length"


def passes(chain: Chain, *most: int | None, parts: int = 1) -> Look:
    """Pass over one object, each time so many batches; None: to the end."""
    return Look(lambda make: Seen(make(chain)().run(*most), parts), (chain,))


def epochs(chain: Chain, count: int) -> Look:
    """Say several epochs."""
    return Look(lambda make: Seen(make(chain)().epochs(count)), (chain,))


def a_loader_for_each(chain: Chain, count: int) -> Look:
    """Open a loader of one pipeline for each pass."""

    def see(make: Make) -> Seen:
        opener = make(chain)
        return Seen([opener().run(None)[0] for _ in range(count)])

    return Look(see, (chain,))


def each_made_anew(*chains: Chain) -> Look:
    """Make a pipeline of each chain, and pass over it once."""
    return Look(lambda make: Seen([make(chain)().run(None)[0] for chain in chains]), chains)


def firsts(chain: Chain, count: int) -> Look:
    """Ask `next(iter(loader))` several times."""

    def see(make: Make) -> Seen:
        loader = make(chain)()
        return Seen([[next(iter(loader))] for _ in range(count)])

    return Look(see, (chain,), ITERATOR)


def two_at_once(chain: Chain) -> Look:
    """Take turns between two iterators over one object."""

    def see(make: Make) -> Seen:
        loader = make(chain)()
        turns = list(zip(iter(loader), iter(loader), strict=True))
        return Seen([[one[at] for one in turns] for at in range(2)])

    return Look(see, (chain,), ITERATOR)


def ended_by_another(chain: Chain) -> Look:
    """Ask an iterator for more where another one over the same object has begun."""

    def see(make: Make) -> Facts:
        loader = make(chain)()
        first, second = iter(loader), iter(loader)
        try:
            return {"batches": [len(next(one)) for one in (first, second, first)]}
        except Exception as error:
            return {"error": type(error).__name__}

    return Look(see, (chain,), ITERATOR)


def behind_the_end(chain: Chain) -> Look:
    """Ask an iterator that is at its end twice more."""

    def see(make: Make) -> Facts:
        iterator = iter(make(chain)())
        return {"batches": len(list(iterator)), "more": [next(iterator, None) for _ in range(2)]}

    return Look(see, (chain,), ITERATOR)


def beside_a_shorter_one(longer: Chain, shorter: Chain) -> Look:
    """Loop over two loaders by `zip`, and then over each of them."""

    def see(make: Make) -> Seen:
        loaders = make(shorter)(), make(longer)()
        beside = [list(side) for side in zip(*zip(*loaders, strict=False), strict=True)]
        return Seen([*beside, *(loader.run(None)[0] for loader in loaders)])

    return Look(see, (longer, shorter), ITERATOR)


def kept(chain: Chain) -> Look:
    """Keep all batches of a pass, and look at them only then."""
    return Look(lambda make: Seen([list(map(batch_of, list(make(chain)().again())))]), (chain,), ITERATOR)


def counted(chain: Chain) -> Look:
    """Loop with a bar of tqdm and with enumerate."""

    def see(make: Make) -> Facts:
        from tqdm import tqdm

        bar = tqdm(make(chain)().again(), disable=True)
        return {"total": bar.total, "numbers": [number for number, _ in enumerate(bar, start=1)]}

    return Look(see, (chain,), LENGTH)


def length(chain: Chain) -> Look:
    """Ask for the length."""

    def see(make: Make) -> Facts:
        try:
            return {"len": len(make(chain)())}
        except TypeError:
            return {"len": "TypeError"}

    return Look(see, (chain,), LENGTH)


def left_by_an_exception(chain: Chain) -> Look:
    """Leave a pass by an exception in the loop, and begin another one."""

    def see(make: Make) -> Seen:
        loader, found = make(chain)(), list[Batch]()
        try:
            for batch in loader:
                found.append(batch)
                raise InterruptedError
        except InterruptedError:
            return Seen([found, *loader.run(None)])
        raise AssertionError("the loop has had no batch")

    return Look(see, (chain,), ITERATOR)


def for_ever(chain: Chain, count: int, parts: int) -> Look:
    """Go on with the next pass where one ends, for so many batches."""

    def see(make: Make) -> Seen:
        loader = make(chain)()
        endless: Iterator[Batch] = itertools.chain.from_iterable(itertools.repeat(loader))
        return Seen([list(itertools.islice(endless, count))], parts)

    return Look(see, (chain,), ITERATOR)


def validated_in_the_middle(train: Chain, val: Chain) -> Look:
    """Pass over another pipeline, twice, while one stands in the middle of a pass."""

    def see(make: Make) -> Seen:
        training, validation = iter(make(train)()), make(val)()
        first = next(training)
        looks = validation.run(None, 1)
        return Seen([[first, *training], *looks])

    return Look(see, (train, val), ITERATOR)


def leaks(val: Chain, train: Chain) -> Look:
    """Find out whether three passes over a training set have had elements of a validation set."""

    def see(make: Make) -> Facts:
        several = [[frozenset(numbers(one)) for one in make(chain)().run(None, None, None)] for chain in (val, train)]
        sides = [frozenset[float]().union(*passes) for passes in several]
        return {
            "leaks": bool(sides[0] & sides[1]),
            "together": len(sides[0] | sides[1]),
            "validated on": labels(several[0]),
        }

    return Look(see, (val, train))


def ending(chain: Chain) -> Look:
    """Read two batches of a pipeline, or the error in their place."""

    def see(make: Make) -> Facts:
        try:
            return {"batches": [len(one) for one in make(chain)().run(2)]}
        except Exception as error:
            return {"error": type(error).__name__}

    return Look(see, (chain,))


def mixes_repetitions(chain: Chain) -> Look:
    """Count how often elements come in one pass, and whether the first batch has each of them."""

    def see(make: Make) -> Facts:
        (one,) = make(chain)().run(None)
        counts = Counter(numbers(one))
        whole = len({row["i"] for row in one[0]}) == len(counts)
        return {"elements": counts.total(), "each element": max(counts.values()), "first part whole": whole}

    return Look(see, (chain,))


def of_a_mixture(chain: Chain, small: int) -> Look:
    """Look at the elements of the small set, with the numbers from `small` on, in two passes over a mixture."""

    def see(make: Make) -> Facts:
        held = [[row for batch in one for row in batch if row["i"] >= small] for one in make(chain)().run(None, None)]
        draws = [[row["x"] for row in rows] for rows in held]
        again = all(len({row["i"] for row in rows}) < len(rows) for rows in held)
        return {"comes again": again, "other draws": len({*draws[0], *draws[1]}) == len(draws[0]) + len(draws[1])}

    return Look(see, (chain,))


def ours(see: Callable[..., Seen | Facts], *chains: Chain) -> Look:
    """Look at loaders of ours alone: the row says what peers do."""

    def seen(make: Make) -> Seen | Facts:
        return see(*(make(chain)() for chain in chains))

    return Look(seen, chains)
