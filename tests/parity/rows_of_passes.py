"""Rows of the table: passes, and what random numbers depend on."""

from __future__ import annotations

import pickle
from typing import Any

from tests.parity import looks
from tests.parity.chains import LENGTHS, LONG, LONG_SHUFFLED, PLAIN, RANDOM, SHUFFLED, N, rows, two_sides
from tests.parity.habit import Habit, Seen
from tests.parity.looks import ours
from tests.parity.peers import DataLoader
from tests.parity.seen import batch_of


def another_way(loader: Any) -> Seen:
    first = loader.run(None)
    return Seen([*first, list(map(batch_of, loader.pipe.iter_batches(**loader.options)))])


def derived_again(loader: Any) -> Seen:
    """Look at a pass of a pipeline, and at two of one that is derived from it anew each time, configured otherwise."""
    derived = [loader.pipe.with_config(error_budget=n / 10).map(lambda batch: batch, name="same") for n in range(2)]
    passes = [loader.pipe, *derived]
    return Seen([list(map(batch_of, pipe.iter_batches(**loader.options))) for pipe in passes])


def unpickled(loader: Any) -> Seen:
    first = loader.run(None)
    copy = pickle.loads(pickle.dumps(loader.pipe))
    return Seen([*first, list(map(batch_of, copy.iter_batches(**loader.options)))])


def unpickled_loader() -> Seen:
    loader = DataLoader().produced(SHUFFLED)()
    first = loader.run(None)
    return Seen([*first, list(map(batch_of, pickle.loads(pickle.dumps(loader.again()))))])


PASSES = (
    Habit(
        "`for` twice over one object",
        looks.passes(RANDOM, None, None),
        "two passes: each has every element once, in another order, with other random numbers",
        {"batches": [LENGTHS, LENGTHS], "distinct": [N, N], "equal orders": "ab"},
        passes=(0, 1),
    ),
    Habit(
        "`for` twice, nothing is shuffled",
        looks.passes(PLAIN, None, None),
        "the order of the source each time, on one fixed worker too",
        {"in source order": [True, True]},
    ),
    Habit(
        "a loader made in each epoch, of one pipeline",
        looks.a_loader_for_each(RANDOM, 3),
        "passes of one pipeline are numbered in a program, whatever is iterated over: the third is pass 2",
        {"equal orders": "abc", "draws of an element": "other each time"},
        differs={"DataLoader": "its generator begins again: making a loader in each epoch would train on one order"},
        passes=(0, 1, 2),
    ),
    Habit(
        "the pipeline made in each epoch",
        looks.each_made_anew(SHUFFLED, SHUFFLED),
        "a pipeline that is made anew counts from 0: the same order, with a warning if no seed was given",
        {"equal orders": "aa"},
        passes=(0, 0),
    ),
    Habit(
        "`epochs=3`",
        looks.epochs(RANDOM, 3),
        "three passes, each with batches of its own, as three loops have",
        {"batches": [LENGTHS] * 3, "distinct": [N] * 3, "equal orders": "abc"},
        passes=(0, 1, 2),
    ),
    Habit(
        "a loop left by `break`, then another one",
        looks.passes(RANDOM, 1, None),
        "a new iterator is a new pass: it has every element",
        {"batches": [[8], LENGTHS], "distinct": [8, N]},
        passes=(0, 1),
        on_workers=("iter_batches", "DataLoader"),
    ),
    Habit(
        "three looks at the first batches of a validation set",
        looks.passes(LONG, 2, 2, 2),
        "the same batches each time, on one fixed worker too",
        {"equal orders": "aaa"},
        on_workers=("to_tf_dataset", "Ray Train"),
    ),
    Habit(
        "`next(iter(loader))` three times",
        looks.firsts(LONG_SHUFFLED, 3),
        "the first batch of three passes",
        {"equal orders": "abc"},
        passes=(0, 1, 2),
    ),
    Habit(
        "two iterators at once",
        looks.two_at_once(SHUFFLED),
        "two passes, each with every element",
        {"distinct": [N, N], "equal orders": "ab"},
        passes=(0, 1),
        without=dict.fromkeys(("to_torch", "DataLoader", "to_tf_dataset"), "one job stands behind it: the next row"),
    ),
    Habit(
        "two iterators at once over one `to_torch()`",
        looks.ended_by_another(LONG),
        "an error in the first one: one job stands behind it, whose pass is over; make two",
        {"error": "PlanError"},
        differs=dict.fromkeys(("DataLoader", "tf.data"), "two passes: two jobs would have to run behind one object"),
        only=("to_torch", "DataLoader"),
    ),
    Habit(
        "`zip(a, b)` of two loaders",
        looks.beside_a_shorter_one(PLAIN, rows(10).batch(8)),
        "ends with the shorter one; the next passes are whole",
        {"batches": [[8, 2], [8, 8], [8, 2], LENGTHS]},
    ),
    Habit(
        "`len`, whole, with `drop_remainder=True`, behind `skip`, `take` and `repeat(3)`",
        looks.lengths(PLAIN, rows(N).batch(8, drop_remainder=True), rows(N).skip(3).take(10).repeat(3).batch(8)),
        "it counts a smaller batch at the end, if that is not left out",
        {"len": [3, 2, 4]},
    ),
    Habit(
        "`len` behind `filter` and of an endless `repeat()`",
        looks.lengths(rows(N).even().batch(8), rows(N).repeat().batch(8)),
        "TypeError: it is not known without running functions",
        {"len": ["TypeError"] * 2},
    ),
    Habit(
        "validation in the middle of a training pass",
        looks.validated_in_the_middle(SHUFFLED, PLAIN),
        "no pipeline's passes touch another's",
        {"batches": [LENGTHS, LENGTHS, [8]], "in source order": [False, True, True]},
    ),
    Habit(
        "a pass in one way to iterate, and one by `iter_batches`",
        ours(another_way, RANDOM),
        "all ways count together",
        {"distinct": [N, N], "equal orders": "ab", "draws of an element": "other each time"},
        peers={},
        passes=(0, 1),
    ),
    Habit(
        "the same operators and `with_config(...)` again, before each pass",
        ours(derived_again, RANDOM),
        "equal ones that were derived from one pipeline count together, and apart from it",
        {"equal orders": "aab"},
        peers={},
        only=("iter_batches", "tensorflow engine"),
        passes=(0, 0, 1),
    ),
    Habit(
        "a pickled pipeline",
        ours(unpickled, SHUFFLED),
        "an unpickled one counts from 0",
        {"equal orders": "aa"},
        peers={"DataLoader": unpickled_loader},
        differs={"DataLoader": "a copy goes on where its generator was: a task shall not depend on what came before"},
        only=("iter_batches", "tensorflow engine"),
        passes=(0, 0),
    ),
)

SEEDS = (
    Habit(
        "no seed at all, in two objects",
        looks.each_made_anew(rows(N).shuffle(N, None).batch(8), rows(N).shuffle(N, None).batch(8)),
        "the pipeline's seed serves, which is 0 if none is given: one order",
        {"equal orders": "aa"},
        differs=dict.fromkeys(
            ("DataLoader", "tf.data"),
            "another order each time: a run can be had again without a word; a seed varies it",
        ),
    ),
    Habit(
        "one seed for shuffles of unlike pipelines",
        looks.each_made_anew(rows(N).shuffle(N).batch(8), rows(N).noise().shuffle(N).batch(4)),
        "a seed that is given to a shuffle is the whole of its key: one order",
        {"equal orders": "aa"},
    ),
    Habit(
        "`images.shuffle(n, seed=1)` zipped with `labels.shuffle(n, seed=1)`",
        looks.passes(two_sides(1, 1).batch(N), None, None),
        "pairs stay pairs in each pass",
        {"pairs": "kept", "equal orders": "ab"},
    ),
    Habit(
        "the same without seeds",
        looks.passes(two_sides(None, None).batch(N), None),
        "each shuffle draws its own order: pairs are torn",
        {"pairs": "torn"},
    ),
    Habit(
        "`shuffle(n, reshuffle=False)`",
        looks.passes(rows(N).shuffle(N, reshuffle=False).batch(8), None, None, None),
        "one order in all passes",
        {"equal orders": "aaa", "in source order": [False] * 3},
    ),
    Habit(
        "`cache()`, then random functions",
        looks.passes(rows(N).cache().noise().batch(8), None, None),
        "`autocache()` keeps what is before it: other numbers in each pass (behind random functions it warns)",
        {"draws of an element": "other each time"},
    ),
    Habit(
        "random functions under other batches and orders",
        looks.each_made_anew(rows(N).noise().batch(8), rows(N).noise().shuffle(N).batch(5)),
        "a random number belongs to seed, pass, operator and element, to nothing else",
        {"draws of an element": "the same"},
        differs=dict.fromkeys(
            ("DataLoader", "tf.data"),
            "other numbers: draws depend on the order of calls; here an element has its own on any workers",
        ),
    ),
)
