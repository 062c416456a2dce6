"""Rows of the table: operators in each order."""

from __future__ import annotations

from tests.parity import looks
from tests.parity.chains import Chain, N, rows, two_sides
from tests.parity.habit import Habit, Look


def apart(chain: Chain, size: int, times: int = 3) -> Look:
    """Look at the repetitions in one pass: so many parts, of batches of `size`."""
    return looks.passes(chain.batch(size), None, parts=times)


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
        "an endless `repeat()`, left after so many steps",
        looks.passes(rows(N).noise().repeat().batch(8), 5, 5),
        "the next iterator begins anew",
        {"batches": [[8] * 5] * 2, "equal orders": "aa", "draws of an element": "other each time"},
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
        "`repeat()` behind a filter that keeps nothing",
        looks.ending(rows(N).nothing().repeat().batch(5)),
        "an error: it would search for ever",
        {"error": "PlanError"},
        differs={"tf.data": "ends, as if there were no data: a filter that keeps nothing is a mistake"},
        only=("iter_batches",),
    ),
)
