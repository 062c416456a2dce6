"""Rows of the table: operators in each order."""

from __future__ import annotations

from tests.parity import looks
from tests.parity.chains import Chain, N, concat, mixed, rows, two_sides, zip_inputs
from tests.parity.habit import Habit, Look
from tests.parity.peers import torch_loader
from tests.parity.seen import Facts, labels

UNTOLD = {"to_keras": "Keras is told the batches of an epoch", "Trainer": "a Trainer of Hugging Face wants a length"}


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


OPERATORS = (
    Habit(
        "`shuffle(n).take(k)`",
        looks.passes(rows(N).shuffle(N).take(10).batch(5), None, None),
        "other elements in each pass, with a warning",
        {"distinct": [10, 10], "equal elements": "ab"},
    ),
    Habit(
        "`take(k).shuffle(k)`",
        looks.passes(rows(N).take(10).shuffle(N).batch(5), None, None),
        "the same elements in another order",
        {"distinct": [10, 10], "equal elements": "aa", "equal orders": "ab"},
    ),
    Habit(
        "`skip(a).take(b)`, `take(a).skip(b)`",
        looks.each_made_anew(rows(N).skip(5).take(10).batch(5), rows(N).take(10).skip(5).batch(5)),
        "in the order in which they are written",
        {"elements": [10, 5], "in source order": [True, True]},
    ),
    Habit(
        "`shuffle(n).repeat(3)`",
        apart(rows(N).noise().shuffle(N).repeat(3), N),
        "three passes: a shuffle is drained at the end of each",
        {"distinct": [N] * 3, "equal orders": "abc", "draws of an element": "other each time"},
    ),
    Habit(
        "`repeat(3).shuffle(3 * n)`",
        looks.mixes_repetitions(rows(N).repeat(3).shuffle(3 * N).batch(N)),
        "passes are mixed",
        {"elements": 3 * N, "each element": 3, "first part whole": False},
    ),
    Habit(
        "`shuffle(n).take(k).repeat(3)`",
        apart(rows(N).noise().shuffle(N).take(10).repeat(3), 10),
        "each repetition shuffles and draws anew: other elements",
        {"distinct": [10] * 3, "equal elements": "abc"},
    ),
    Habit(
        "`repeat(2).take(k)`, beyond the end",
        looks.passes(rows(N).repeat(2).take(30).batch(10), None),
        "goes on with the next repetition",
        {"elements": [30], "distinct": [N]},
    ),
    Habit(
        "`repeat().take(k)`",
        looks.passes(rows(N).shuffle(N).repeat().take(30).batch(10), None, None),
        "ends",
        {"elements": [30, 30]},
    ),
    Habit(
        "an endless `repeat()`, left after so many steps",
        looks.passes(rows(N).noise().repeat().batch(8), 5, 5),
        "the next iterator begins anew",
        {"batches": [[8] * 5] * 2, "equal orders": "aa", "draws of an element": "other each time"},
        steps=5,
        without={"Trainer": "each of its calls is one epoch of so many steps"},
    ),
    Habit(
        "`batch(8).repeat(2)`",
        looks.passes(rows(N).batch(8).repeat(2), None),
        "batches go over the seam between repetitions; those of `epochs=2` do not",
        {"batches": [[8] * 5]},
        differs={"tf.data": "a smaller batch at the end of each: an epoch has one at most, on any number of workers"},
    ),
    Habit(
        "`batch(4).shuffle(n)`",
        looks.passes(rows(N).batch(4).shuffle(5), None, None),
        "whole batches change places",
        {"batches": [[4] * 5] * 2, "equal orders": "ab"},
    ),
    Habit(
        "shuffled sides zipped, then `repeat(3)`",
        looks.passes(two_sides(1, 1).repeat(3).batch(N), None, parts=3),
        "pairs stay pairs, in another order in each repetition",
        {"pairs": "kept", "distinct": [N] * 3, "equal orders": "abc"},
    ),
    Habit(
        "`zip` with a side that repeats",
        looks.passes(zip_inputs(rows(N), rows(5, column="k").repeat()).batch(8), None),
        "ends with the shorter side",
        {"elements": [N]},
    ),
    Habit(
        "a small set repeated inside `mix`",
        looks.of_a_mixture(mixed(rows(60).noise(), rows(3, first=100).noise().repeat()).batch(8), 100),
        "it comes again and again, with other random numbers, until the other set ends",
        {"comes again": True, "other draws": True},
        without=UNTOLD,
    ),
    Habit(
        "`shuffle(reshuffle=False)`, then `take` and `skip`: a split",
        looks.leaks(
            rows(N).shuffle(N, reshuffle=False).take(5).batch(5), rows(N).shuffle(N, reshuffle=False).skip(5).batch(5)
        ),
        "no element is on both sides in any pass",
        {"leaks": False, "together": N, "validated on": "aaa"},
    ),
    Habit(
        "`shuffle(seed)`, then `take` and `skip`",
        looks.leaks(rows(N).shuffle(N).take(5).batch(5), rows(N).shuffle(N).skip(5).batch(5)),
        "each pass divides anew, so that elements are trained and validated on; a warning says so",
        {"leaks": True},
    ),
    Habit(
        "`random_split`",
        looks.leaks(rows(N).split(0.75, 1).batch(5), rows(N).split(0.75, 0).shuffle(N).batch(5)),
        "`pecan.split(pipe, [0.75, 0.25], seed=...)`: no element is on both sides in any pass",
        {"leaks": False, "together": N, "validated on": "aaa"},
        peers={"DataLoader": random_split},
        without=UNTOLD,
    ),
    Habit(
        "`repeat()` behind a filter that keeps nothing",
        looks.ending(rows(N).nothing().repeat().batch(5)),
        "an error: it would search for ever",
        {"error": "PlanError"},
        differs={"tf.data": "ends, as if there were no data: a filter that keeps nothing is a mistake"},
        only=("iter_batches", "to_torch", "async"),
    ),
    Habit(
        "`concat`, then `shuffle`",
        looks.passes(concat(rows(10), rows(10, first=10)).shuffle(N).batch(8), None, None),
        "both are mixed",
        {"distinct": [N, N], "in source order": [False, False], "equal orders": "ab"},
    ),
    Habit(
        "`unbatch`",
        looks.passes(rows(N).batch(8).unbatch().batch(5), None),
        "elements again",
        {"batches": [[5] * 4], "in source order": [True]},
        steps=4,
    ),
    Habit(
        "`prefetch`",
        looks.passes(rows(N).shuffle(N).prefetch(2).batch(8).prefetch(2), None, None),
        "changes nothing",
        {"distinct": [N, N], "equal orders": "ab"},
    ),
    Habit(
        "`shuffle` with a small buffer",
        looks.passes(rows(N).shuffle(3).batch(8), None, None),
        "every element once; splits are in a random order too",
        {"distinct": [N, N], "equal orders": "ab"},
    ),
)
