"""Rows of the table: passes, what random numbers depend on, and operators in each order."""

from __future__ import annotations

from tests.parity import looks
from tests.parity.chains import LONG, LONG_SHUFFLED, PLAIN, RANDOM, SHUFFLED, Chain, N, joined, rows, two_sides
from tests.parity.looks import Look
from tests.parity.peers import torch_loader
from tests.parity.seen import Facts, labels

KEEPS_ITERATOR = {"to_keras": "Keras keeps its iterator over epochs of `steps_per_epoch`"}
NO_TYPES = {"to_tf_dataset": "it takes the types of its columns from the first batches"}
ONE_JOB = dict.fromkeys(("to_torch", "DataLoader", "to_tf_dataset"), "one job stands behind it: the next row")
UNTOLD = {"to_keras": "Keras is told the batches of an epoch", "Trainer": "a Trainer of Hugging Face wants a length"}

PASSES = {
    "`for` twice over one object": looks.passes(RANDOM, None, None).but(passes=(0, 1)),
    "`for` twice, nothing is shuffled": looks.passes(PLAIN, None, None),
    "a loader made in each epoch, of one pipeline": looks.a_loader_for_each(RANDOM, 3).but(passes=(0, 1, 2)),
    "the pipeline made in each epoch": looks.each_made_anew(SHUFFLED, SHUFFLED).but(passes=(0, 0)),
    "`epochs=3`": looks.epochs(RANDOM, 3).but(passes=(0, 1, 2)),
    "a loop left by `break`, then another one": looks.passes(RANDOM, 1, None).but(
        passes=(0, 1), on_workers=("DataLoader",)
    ),
    "three looks at the first batches of a validation set": looks.passes(LONG, 2, 2, 2).but(
        on_workers=("Ray Train",), without=KEEPS_ITERATOR
    ),
    "three looks, shuffled": looks.passes(LONG_SHUFFLED, 2, 2, 2).but(passes=(0, 1, 2), without=KEEPS_ITERATOR),
    "`next(iter(loader))` three times": looks.firsts(LONG_SHUFFLED, 3).but(passes=(0, 1, 2)),
    "two iterators at once": looks.two_at_once(SHUFFLED).but(passes=(0, 1), without=ONE_JOB),
    "two iterators at once over one `to_torch()`": looks.ended_by_another(LONG).but(only=("to_torch", "DataLoader")),
    "`next` behind the end": looks.behind_the_end(SHUFFLED),
    "`zip(a, b)` of two loaders": looks.beside_a_shorter_one(PLAIN, rows(10).batch(8)),
    "`list(loader)`": looks.kept(PLAIN),
    "tqdm and enumerate": looks.counted(PLAIN),
    "`len`, whole, with `drop_remainder=True`, behind `skip`, `take` and `repeat(3)`": looks.lengths(
        PLAIN, rows(N).batch(8, drop_remainder=True), rows(N).skip(3).take(10).repeat(3).batch(8)
    ),
    "`len` behind `filter` and of an endless `repeat()`": looks.lengths(
        rows(N).even().batch(8), rows(N).repeat().batch(8)
    ),
    "`while True: for batch in loader`, for so many steps": looks.for_ever(SHUFFLED, 6, parts=2),
    "validation in the middle of a training pass": looks.validated_in_the_middle(SHUFFLED, PLAIN),
    "no elements": looks.kept(rows(N).take(0).batch(8)).but(without=NO_TYPES),
    "`drop_remainder=True`": looks.passes(rows(N).batch(8, drop_remainder=True), None, None),
}

SEEDS = {
    "another seed": looks.each_made_anew(rows(N).shuffle(N, 1).batch(8), rows(N).shuffle(N, 2).batch(8)),
    "no seed at all, in two objects": looks.each_made_anew(*[rows(N).shuffle(N, None).batch(8)] * 2),
    "one seed for shuffles of unlike pipelines": looks.each_made_anew(
        rows(N).shuffle(N).batch(8), rows(N).noise().shuffle(N).batch(4)
    ),
    "`images.shuffle(n, seed=1)` zipped with `labels.shuffle(n, seed=1)`": looks.passes(
        two_sides(1, 1).batch(N), None, None
    ),
    "the same with other seeds": looks.passes(two_sides(1, 2).batch(N), None),
    "the same without seeds": looks.passes(two_sides(None, None).batch(N), None),
    "`zip`, and then `shuffle`": looks.passes(
        joined("zip", rows(N), rows(N, column="j")).shuffle(N).batch(8), None, None
    ),
    "`shuffle(n, reshuffle=False)`": looks.passes(rows(N).shuffle(N, reshuffle=False).batch(8), None, None, None),
    "`reshuffle=False`, then `repeat(3)`": looks.passes(
        rows(N).shuffle(N, reshuffle=False).repeat(3).batch(N), None, parts=3
    ),
    "random functions, in two passes": looks.passes(rows(N).noise().batch(8), None, None),
    "`cache()`, then random functions": looks.passes(rows(N).cache().noise().batch(8), None, None),
    "random functions under other batches and orders": looks.each_made_anew(
        rows(N).noise().batch(8), rows(N).noise().shuffle(N).batch(5)
    ),
}


def apart(chain: Chain, size: int, times: int = 3) -> Look:
    """Look at the repetitions in one pass: so many parts, of batches of `size`."""
    return looks.passes(chain.batch(size), None, parts=times)


def random_split() -> Facts:
    import torch

    data = torch_loader(rows(N)).dataset
    generator = torch.Generator().manual_seed(3)
    train, val = torch.utils.data.random_split(data, [0.75, 0.25], generator=generator)
    sides = [[frozenset(part.dataset[at]["i"] for at in part.indices) for _ in range(3)] for part in (val, train)]
    return {
        "leaks": bool(sides[0][0] & sides[1][0]),
        "together": len(sides[0][0] | sides[1][0]),
        "validated on": labels(sides[0]),
    }


FIXED = rows(N).shuffle(N, reshuffle=False)
OPERATORS = {
    "`shuffle(n).take(k)`": looks.passes(rows(N).shuffle(N).take(10).batch(5), None, None),
    "`take(k).shuffle(k)`": looks.passes(rows(N).take(10).shuffle(N).batch(5), None, None),
    "`skip(a).take(b)`, `take(a).skip(b)`": looks.each_made_anew(
        rows(N).skip(5).take(10).batch(5), rows(N).take(10).skip(5).batch(5)
    ),
    "`shuffle(n).repeat(3)`": apart(rows(N).noise().shuffle(N).repeat(3), N),
    "`repeat(3).shuffle(3 * n)`": looks.mixes_repetitions(rows(N).repeat(3).shuffle(3 * N).batch(N)),
    "`shuffle(n).take(k).repeat(3)`": apart(rows(N).noise().shuffle(N).take(10).repeat(3), 10),
    "`repeat(2).take(k)`, beyond the end": looks.passes(rows(N).repeat(2).take(30).batch(10), None),
    "`repeat().take(k)`": looks.passes(rows(N).shuffle(N).repeat().take(30).batch(10), None, None),
    "an endless `repeat()`, left after so many steps": looks.passes(rows(N).noise().repeat().batch(8), 5, 5).but(
        steps=5, without={"Trainer": "each of its calls is one epoch of so many steps"}
    ),
    "`batch(8).repeat(2)`": looks.passes(rows(N).batch(8).repeat(2), None),
    "`batch(4).shuffle(n)`": looks.passes(rows(N).batch(4).shuffle(5), None, None),
    "shuffled sides zipped, then `repeat(3)`": apart(two_sides(1, 1).repeat(3), N),
    "`zip` with a side that repeats": looks.passes(joined("zip", rows(N), rows(5, column="k").repeat()).batch(8), None),
    "a small set repeated inside `mix`": looks.of_a_mixture(
        joined("mix", rows(60).noise(), rows(3, first=100).noise().repeat()).batch(8), 100
    ).but(without=UNTOLD),
    "`shuffle(reshuffle=False)`, then `take` and `skip`: a split": looks.leaks(
        FIXED.take(5).batch(5), FIXED.skip(5).batch(5)
    ),
    "`shuffle(seed)`, then `take` and `skip`": looks.leaks(
        rows(N).shuffle(N).take(5).batch(5), rows(N).shuffle(N).skip(5).batch(5)
    ),
    "`random_split`": looks.leaks(rows(N).split(0.75, 1).batch(5), rows(N).split(0.75, 0).shuffle(N).batch(5)).but(
        peers={"DataLoader": random_split}, without=UNTOLD
    ),
    "`repeat()` behind a filter that keeps nothing": looks.ending(rows(N).nothing().repeat().batch(5)).but(
        only=("iter_batches", "to_torch", "async")
    ),
    "`concat`, then `shuffle`": looks.passes(
        joined("concat", rows(10), rows(10, first=10)).shuffle(N).batch(8), None, None
    ),
    "`unbatch`": looks.passes(rows(N).batch(8).unbatch().batch(5), None).but(steps=4),
    "`prefetch`": looks.passes(rows(N).shuffle(N).prefetch(2).batch(8).prefetch(2), None, None),
    "`shuffle` with a small buffer": looks.passes(rows(N).shuffle(3).batch(8), None, None),
}
