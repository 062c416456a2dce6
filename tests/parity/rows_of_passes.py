"""Rows of the table: passes, and what random numbers depend on."""

from __future__ import annotations

from tests.parity import looks
from tests.parity.chains import LENGTHS, LONG, LONG_SHUFFLED, PLAIN, RANDOM, SHUFFLED, N, rows, two_sides, zip_inputs
from tests.parity.habit import Habit

KEEPS_ITERATOR = {"to_keras": "Keras keeps its iterator over epochs of `steps_per_epoch`"}
NO_TYPES = {"to_tf_dataset": "it takes the types of its columns from the first batches"}

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
        on_workers=("to_tf_dataset", "Lightning", "Ray Train"),
        without=KEEPS_ITERATOR,
    ),
    Habit(
        "three looks, shuffled",
        looks.passes(LONG_SHUFFLED, 2, 2, 2),
        "three passes: other batches each time",
        {"equal orders": "abc"},
        passes=(0, 1, 2),
        without=KEEPS_ITERATOR,
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
        "`next` behind the end",
        looks.behind_the_end(SHUFFLED),
        "an iterator that is at its end stays there",
        {"batches": 3, "more": [None, None]},
    ),
    Habit(
        "`zip(a, b)` of two loaders",
        looks.beside_a_shorter_one(PLAIN, rows(10).batch(8)),
        "ends with the shorter one; the next passes are whole",
        {"batches": [[8, 2], [8, 8], [8, 2], LENGTHS]},
    ),
    Habit("`list(loader)`", looks.kept(PLAIN), "all batches stay as they were", {"in source order": [True]}),
    Habit(
        "tqdm and enumerate",
        looks.counted(PLAIN),
        "a bar has its total",
        {"total": 3, "numbers": [1, 2, 3]},
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
        "`while True: for batch in loader`, for so many steps",
        looks.for_ever(SHUFFLED, 6, parts=2),
        "one pass behind the other, each whole",
        {"batches": [LENGTHS * 2], "distinct": [N, N], "equal orders": "ab"},
    ),
    Habit(
        "validation in the middle of a training pass",
        looks.validated_in_the_middle(SHUFFLED, PLAIN),
        "no pipeline's passes touch another's",
        {"batches": [LENGTHS, LENGTHS, [8]], "in source order": [False, True, True]},
    ),
    Habit(
        "no elements",
        looks.kept(rows(N).take(0).batch(8)),
        "a pass without a batch",
        {"batches": [[]]},
        without=NO_TYPES,
    ),
    Habit(
        "`drop_remainder=True`",
        looks.passes(rows(N).batch(8, drop_remainder=True), None, None),
        "what does not fill a batch is left out of each pass",
        {"batches": [[8, 8], [8, 8]]},
    ),
)

SEEDS = (
    Habit(
        "another seed",
        looks.each_made_anew(rows(N).shuffle(N, 1).batch(8), rows(N).shuffle(N, 2).batch(8)),
        "another order",
        {"equal orders": "ab"},
    ),
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
        "the same with other seeds",
        looks.passes(two_sides(1, 2).batch(N), None),
        "pairs are torn",
        {"pairs": "torn"},
    ),
    Habit(
        "the same without seeds",
        looks.passes(two_sides(None, None).batch(N), None),
        "each shuffle draws its own order: pairs are torn",
        {"pairs": "torn"},
    ),
    Habit(
        "`zip`, and then `shuffle`",
        looks.passes(zip_inputs(rows(N), rows(N, column="j")).shuffle(N).batch(8), None, None),
        "pairs stay pairs",
        {"pairs": "kept", "equal orders": "ab"},
    ),
    Habit(
        "`shuffle(n, reshuffle=False)`",
        looks.passes(rows(N).shuffle(N, reshuffle=False).batch(8), None, None, None),
        "one order in all passes",
        {"equal orders": "aaa", "in source order": [False] * 3},
    ),
    Habit(
        "`reshuffle=False`, then `repeat(3)`",
        looks.passes(rows(N).shuffle(N, reshuffle=False).repeat(3).batch(N), None, parts=3),
        "one order in all three",
        {"equal orders": "aaa", "in source order": [False] * 3},
    ),
    Habit(
        "random functions, in two passes",
        looks.passes(rows(N).noise().batch(8), None, None),
        "other numbers in each pass",
        {"draws of an element": "other each time"},
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
