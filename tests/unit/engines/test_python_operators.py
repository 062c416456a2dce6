"""What each operator of the python engine does to a sequence, columns, pixels, and elements with equal keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pecan_ray.engines.contract import Produced
from pecan_ray.engines.in_process import run_in_process
from pecan_ray.engines.python.channel_arithmetic import PerChannelFunction, is_channel_arithmetic
from pecan_ray.engines.python.rows import RowsColumn
from pecan_ray.errors import BatchShapeError, ColumnError, OpError, OutputTypeError, PlanError
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.grouping import Tail
from pecan_ray.plan.operators import Map
from pecan_ray.plan.splits import OUTPUT_BITS, Lease
from pecan_ray.sources import Items
from tests.unit.engines.engine_leases import ListedLeases, column, delivered, numbers, run_engine, whole_leases


def of_lengths(*lengths: int) -> PecanPipeline:
    return PecanPipeline(Items([{"x": np.full(n, n, np.int16), "n": n} for n in lengths], split_rows=100))


def in_order(pipe: PecanPipeline, **options: Any) -> list[Produced]:
    return run_engine(pipe, order="strict", **options)


def batches_of(produced: list[Produced], name: str = "i") -> list[list[Any]]:
    return [batch.columns[name].tolist() for batch in produced if batch.rows]


def test_padded_batch_pads_to_the_longest_of_each_batch_or_to_fixed_shapes_with_a_padding_per_column() -> None:
    first, second = in_order(of_lengths(1, 3, 2).padded_batch(2))
    assert first.columns["x"].tolist() == [[1, 0, 0], [3, 3, 3]] and first.columns["x"].dtype == np.int16
    assert first.columns["n"].tolist() == [1, 3]
    assert second.columns["x"].tolist() == [[2, 2]] and second.partial
    pipe = PecanPipeline(Items([{"x": np.ones((1, 2)), "y": np.ones(2, np.uint8), "s": "text"}]))
    (batch,) = in_order(pipe.padded_batch(3, padding={"x": -1.5}, shapes={"x": (2, None), "y": (3,)}))
    columns = {name: values.tolist() for name, values in batch.columns.items()}
    assert columns == {"x": [[[1, 1], [-1.5, -1.5]]], "y": [[1, 1, 0]], "s": ["text"]}


PAIRS = [{"a": [1, 1], "b": [2, 2, 2], "c": [1, 2, 3, 4]}, {"a": [], "b": [2], "c": []}, {"a": [], "b": [], "c": [1]}]


@pytest.mark.parametrize("batched", ["padded_batch", "bucket_by_length"])
def test_columns_are_padded_to_one_shape_and_a_batch_of_empty_lists_has_the_dtype_of_its_padding(batched: str) -> None:
    padding: dict[str, Any] = {"same_shape": ("a", "b"), "padding": {"a": -1}}
    pairs = PecanPipeline(Items(PAIRS)).map(dict)
    if batched == "padded_batch":
        first, second = in_order(pairs.padded_batch(2, **padding))
    else:
        first, second = in_order(pairs.bucket_by_length([1], sizes=2, length="b", **padding))
    assert first.columns["a"].tolist() == [[1, 1, -1], [-1, -1, -1]] and first.columns["b"].shape == (2, 3)
    assert first.columns["c"].shape == (2, 4), "as long as its own values"
    dtypes = {name: str(column.dtype) for name, column in second.columns.items()}
    assert dtypes == {"a": "int64", "b": "float64", "c": "int64"}
    with pytest.raises(BatchShapeError, match=r"column 'a' of element 0 .* is no array of 2 dimensions, as another"):
        in_order(pairs.map(lambda element: {**element, "b": [element["b"]]}).padded_batch(2, **padding))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"shapes": {"x": (2,)}}, BatchShapeError, r"column 'x' of element 1 .*shape \[3\], longer than .* \[2\]"),
        ({"shapes": {"z": (2,)}}, ColumnError, r"shapes names the column 'z', but the elements have \['n', 'x'\]"),
        ({"padding": {"z": 2}}, ColumnError, "padding names the column 'z'"),
        ({"same_shape": ("x", "z")}, ColumnError, "same_shape names the column 'z'"),
        ({"shapes": {"x": (2, 2)}}, PlanError, "shapes gives 2 dimensions for column 'x', but element 0 .* has 1"),
        ({"padding": 0.5}, PlanError, "padding 0.5 is no value of column 'x', whose dtype is int16"),
        ({"padding": -40_000}, PlanError, "padding -40000 is no value"),
    ],
)
def test_padding_that_does_not_fit_is_refused(arguments: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        in_order(of_lengths(1, 3).padded_batch(2, **arguments))


def test_buckets_collect_elements_of_similar_length_and_yield_when_full() -> None:
    pipe = of_lengths(1, 5, 2, 9, 2, 6, 1, 4).bucket_by_length([3, 6], sizes=[2, 2, 1], length="x", padding=-1)
    produced = in_order(pipe)
    assert batches_of(produced, "n") == [[1, 2], [9], [6], [2, 1], [5, 4]]
    assert produced[0].columns["x"].tolist() == [[1, -1], [2, 2]]
    assert not any(batch.partial for batch in produced)
    left = in_order(of_lengths(1, 5, 9).bucket_by_length([3, 6], sizes=2, length=lambda element: element["n"]))
    assert batches_of(left, "n") == [[1], [5], [9]] and all(batch.partial for batch in left), "what is left is last"


def test_a_length_that_cannot_be_told_follows_the_on_error_policy() -> None:
    pipe = of_lengths(1, 0, 2).bucket_by_length([1], sizes=3, length=lambda element: 2 // int(element["n"]))
    with pytest.raises(OpError, match="bucket_by_length failed on element 1 of split 0: ZeroDivisionError"):
        in_order(pipe)
    leases = ListedLeases(whole_leases(tuple(pipe.plan.sources())))
    produced = run_engine(pipe, leases, on_error="quarantine")
    assert batches_of(produced, "n") == [[1, 2]]
    (bad,) = [bad for batch in produced for bad in batch.bad]
    assert (bad.op, bad.where, bad.element["n"]) == ("bucket_by_length", "element 1 of split 0", 0)
    assert delivered(produced) == leases.target()
    with pytest.raises(ColumnError, match=r"there is no column 'y' in element 0 of split 0; there are \['n', 'x'\]"):
        in_order(of_lengths(1).bucket_by_length([1], sizes=3, length="y"))
    with pytest.raises(OpError, match=r"column 'n' of element 0 of split 0 is int, which has no length.*pass length="):
        in_order(of_lengths(1).bucket_by_length([1], sizes=3, length="n"))


def test_unbatch_gives_back_the_rows_that_functions_on_batches_leave() -> None:
    pipe = numbers(7, 300).batch(3).map(lambda i: i * 10, on="i").unbatch().batch(2)
    assert batches_of(in_order(pipe)) == [[0, 10], [20, 30], [40, 50], [60]]
    pipe = numbers(6, 300).batch(3).map(lambda i: i[i % 2 == 0], on="i")
    produced = in_order(pipe)
    assert batches_of(produced) == [[0, 2], [4]] and [batch.rows for batch in produced] == [2, 1]
    leases = ListedLeases(whole_leases(tuple(pipe.plan.sources())))
    rows = run_engine(pipe.unbatch().batch(2), leases)
    assert sorted(column(rows, "i")) == [0, 2, 4] and delivered(rows) == leases.target()
    (rest,) = run_engine(numbers(6, 300).batch(3).map(lambda batch: {"i": batch["i"][:0]}).unbatch().batch(2))
    assert (rest.rows, delivered([rest])[0, 0, 0].contains_all(0, 6 << OUTPUT_BITS)) == (0, True), "none at all"
    refused: list[tuple[Any, bool, str]] = [
        (
            lambda batch: {"i": batch["i"][:2]},
            True,
            r"f: it returned 2 rows for the 3 .* element 0 .* unbatch wants",
        ),
        (lambda batch: {**batch, "n": 2}, False, r"f: column 'n' .*has no rows \(it is a int\)"),
        (lambda batch: {**batch, "z": np.zeros(2)}, False, "has 2 rows, but others have 3"),
    ]
    for function, same_rows, said in refused:
        with pytest.raises(BatchShapeError, match=said):
            in_order(numbers(7, 300).batch(3).map(function, name="f").unbatch(same_rows=same_rows))
    with pytest.raises(BatchShapeError, match=r"f: it returned 2 rows for the 3 .*, but map\(rows=3\) wants as many"):
        in_order(numbers(7, 300).map(lambda columns: {"i": columns["i"][:2]}, rows=3, name="f").batch(2))
    with pytest.raises(PlanError, match=r"map\(rows=\.\.\.\)"):
        numbers(7).map(dict, rows=0)


def test_functions_may_write_deep_into_elements_that_are_repeated() -> None:
    def scaled(target: Any) -> Any:
        target["boxes"] *= 2
        target["names"].append("scaled")
        return target

    source = Items([{"target": {"boxes": np.ones(1), "names": ["cat"]}}])
    for pipe in (PecanPipeline(source).take(1).repeat(3), PecanPipeline(source).repeat(3)):
        made = [batch["target"] for batch in run_in_process(pipe.map(scaled, on="target").batch(1).plan)]
        assert [one["boxes"].tolist() for one in made] == [[[2.0]]] * 3
        assert [one["names"].tolist() for one in made] == [[["cat", "scaled"]]] * 3


def test_take_leaves_nothing_open_and_zip_pairs_elements_and_ends_with_the_shortest() -> None:
    pipe = numbers(100).take(5)
    leases = ListedLeases(whole_leases(tuple(pipe.plan.sources())))
    produced = run_engine(pipe, leases)
    assert leases.take() is None, "all leases must be taken"
    assert {key for batch in produced for key in batch.spans} == {lease.key for lease in leases.given}
    tenfold = numbers(3, 300, "j").map(lambda j: j * 10, on="j")
    produced = in_order(numbers(5, 300).zip(tenfold, numbers(9, 300, "k")).batch(2))
    assert [batches_of(produced, name) for name in "ijk"] == [[[0, 1], [2]], [[0, 10], [20]], [[0, 1], [2]]]
    with pytest.raises(PlanError, match=r"zip: both sides have the column 'i'\. Rename it"):
        in_order(numbers(3, 300).zip(numbers(3, 300)))


def test_smaller_batches_are_partial_unless_they_are_dropped_or_were_counted() -> None:
    """Workers complete those of branches; what take or repeat has counted keeps its place."""

    def marks(pipe: PecanPipeline) -> list[tuple[int, bool]]:
        return [(batch.rows, batch.partial) for batch in in_order(pipe) if batch.rows]

    def halves(batch: dict[str, Any]) -> Any:
        yield {"i": batch["i"][:1]}
        yield {"i": batch["i"][1:]}

    full, less = (2, False), (1, True)
    assert marks(numbers(5, 300).batch(2).concat(numbers(3, 300).batch(2))) == [full, full, less, full, less]
    assert marks(numbers(3, 300).batch(2).take(2).repeat(2)) == [full, (1, False)] * 2
    dropping = numbers(5, 300).batch(2, drop_remainder=True).concat(numbers(3, 300).batch(2))
    assert batches_of(in_order(dropping)) == [[0, 1], [2, 3], [0, 1], [2]], "in the branch that asks for it"
    assert batches_of(in_order(numbers(3, 300).batch(2, drop_remainder=True).repeat().take(2))) == [[0, 1], [0, 1]]
    halved = in_order(numbers(7, 300).batch(3).filter(lambda batch: batch["i"][0] != 3).flat_map(halves))
    assert batches_of(halved) == [[0], [1, 2], [6], []], "functions on batches may filter and spread them"
    assert [batch.partial for batch in halved if batch.rows] == [False, False, True, True]


def mixed(weights: list[float], stop: Any = "all", epoch: int = 0) -> list[int]:
    pipe = numbers(300, 300).mix(numbers(300, 300).map(lambda i: i + 1000, on="i"), weights=weights, stop=stop)
    produced = run_engine(pipe, whole_leases(tuple(pipe.plan.sources()), epoch=epoch), order="strict")
    return [int(batch.columns["i"]) for batch in produced if batch.rows]


def test_mix_draws_in_proportion_to_the_weights_and_anew_in_each_epoch() -> None:
    drawn = mixed([3, 1])
    assert Counter(drawn) == Counter([*range(300), *range(1000, 1300)])
    assert 0.6 < sum(i < 1000 for i in drawn[:300]) / 300 < 0.9
    assert [i for i in drawn if i < 1000] == list(range(300)), "each pipeline keeps its order"
    assert drawn == mixed([3, 1]) != mixed([3, 1], epoch=1)
    first = mixed([9, 1], stop="first")
    assert [i for i in first if i < 1000] == list(range(300)) and len(first) < 400, "it can end with the first"


NUMBERS: list[tuple[list[Any], Any]] = [
    ([1, 2], np.int64),
    ([1.5, 2.5], np.float64),
    ([np.float32(1), np.float32(2)], np.float32),
    ([np.datetime64("2024-01-01"), np.datetime64("2024-01-02")], np.dtype("M8[D]")),
    ([np.zeros((0, 2)), np.zeros((0, 2))], np.float64),
    ([np.full(3, 1, ml_dtypes.bfloat16), np.full(3, 2, ml_dtypes.bfloat16)], ml_dtypes.bfloat16),
]
OBJECTS: list[list[Any]] = [["a", "longer"], [b"a", b""], [np.str_("a"), np.str_("longer")], [None, "x"]]


@pytest.mark.parametrize("batching", ["fused", "padded", "behind a shuffle"])
def test_numbers_become_arrays_of_their_dtype_in_a_slot_and_others_objects(batching: str) -> None:
    for values, dtype in [*NUMBERS, *((values, object) for values in OBJECTS)]:
        pipe = PecanPipeline(Items([{"x": value} for value in values], split_rows=2))
        if batching == "padded" and dtype is object and None in values:
            continue  # what is missing cannot be padded
        pipe = pipe.shuffle(1) if batching == "behind a shuffle" else pipe
        (batch,) = in_order(pipe.padded_batch(2) if batching == "padded" else pipe.batch(2))
        found = batch.columns["x"]
        assert found.dtype == dtype and found.tolist() == [np.asarray(value).tolist() for value in values]
        assert (batch.slot is None) == (dtype is object or not found.nbytes)
        assert batch.slot is None or in_slot(found, batch)
    element = {"x": np.arange(3), "s": "text", "n": 5, "b": b"raw"}
    (one,) = in_order(PecanPipeline(Items([element])))
    assert one.rows == 1 and one.columns["x"].tolist() == [0, 1, 2] and in_slot(one.columns["x"], one)
    assert {name: one.columns[name] for name in "snb"} == {"s": "text", "n": 5, "b": b"raw"}, "without a batch"


def in_slot(array: Any, produced: Produced) -> bool:
    assert produced.slot is not None
    return np.shares_memory(array.view(np.uint8), np.frombuffer(produced.slot.buffer, np.uint8))


MEANS = np.array([123.68, 116.78, 103.94], np.float32)
DEVIATIONS = np.array([58.39, 57.12, 57.38])
ONE_MEAN = np.array([[[120.0]]])
SEEN: list[Any] = []


def normalize(image: Any) -> Any:
    return (image.astype(np.float32) - MEANS) / DEVIATIONS


def written_out(image: Any) -> Any:
    return np.clip((image - ONE_MEAN) * np.float32(2) - np.array([0.485, 0.456, 0.406]), -1, 1)


def where(image: Any) -> Any:
    return np.where(image > MEANS, image, 0)


def mean_of_image(image: Any) -> Any:
    return image - MEANS - image.mean()


def swapped(image: Any) -> Any:
    return (image - MEANS)[..., ::-1]


def cast(image: Any) -> Any:
    return image.astype(np.float32)


def remembered(image: Any) -> Any:
    SEEN.append(image)
    return image - MEANS


def told(image: Any) -> Any:
    next(iter(SEEN), None)
    return image - MEANS


@pytest.mark.parametrize("fn", [normalize, written_out, where, mean_of_image, swapped])
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32])
def test_an_image_becomes_what_the_function_makes_of_it(fn: Callable[[Any], Any], dtype: Any) -> None:
    image = np.random.default_rng(0).integers(0, 256, (64, 96, 3)).astype(dtype)
    by_rows = PerChannelFunction(fn)
    for given in (image, image[:, ::-1], image[::2, 5:], image[:4, :4], image[..., 0]):
        if given.shape[1:] not in ((96, 3), (91, 3), (4, 3)):
            continue
        made, expected = by_rows(given.copy()), fn(given.copy())
        assert made.dtype == expected.dtype and made.tobytes() == expected.tobytes()


def test_functions_are_known_by_what_they_name_and_asked_once() -> None:
    def is_known(fn: Callable[..., Any]) -> bool:
        return is_channel_arithmetic(Map(name="fn", fn=fn, on="image"))

    means = MEANS
    known = (normalize, written_out, where, lambda image: image - means)
    others = (cast, remembered, told, lambda image, rng: image - MEANS, abs)
    assert [is_known(fn) for fn in (*known, *others)] == [True] * len(known) + [False] * len(others)
    for fn in (mean_of_image, swapped):  # which are no arithmetic
        calls: list[bool] = []

        def counted(image: Any, fn: Any = fn, calls: list[bool] = calls) -> Any:
            calls.append(issubclass(type(image), RowsColumn))
            return fn(image)

        by_rows = PerChannelFunction(counted)
        for _ in range(3):
            by_rows(np.zeros((96, 96, 3), np.uint8))
        assert calls == [True, False, False, False]
    with pytest.raises(ValueError, match=r"operands could not be broadcast .*\(64,96,4\)"):
        PerChannelFunction(normalize)(np.zeros((64, 96, 4), np.float32))


def keyed(rows: int = 20, key: Any = "g", size: Any = 4, **options: Any) -> PecanPipeline:
    pipe = numbers(rows, 300).map(lambda e: {"i": e["i"], "g": e["i"] % 3}, name="with_key")
    return pipe.group_by(key, size, **options)


def rows_by_key(produced: list[Produced]) -> list[list[int]]:
    return [batch.columns["i"].tolist() for batch in produced if batch.rows]


FULL = [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]


@pytest.mark.parametrize(
    ("tail", "last"),
    [
        ("keep", [[12, 15, 18], [13, 16, 19], [14, 17]]),
        ("fill", [[12, 15, 18, 12], [13, 16, 19, 13], [14, 17, 14, 17]]),
        ("merge", [[12, 15, 18, 13], [16, 19, 14, 17]]),
        ("drop", []),
    ],
)
def test_batches_hold_one_key_and_what_is_left_becomes_what_tail_says(tail: Tail, last: list[list[int]]) -> None:
    pipe = keyed(tail=tail)
    leases = ListedLeases(whole_leases(tuple(pipe.plan.sources())))
    produced = run_engine(pipe, leases, order="strict")
    assert rows_by_key([one for one in produced if not one.partial]) == FULL
    assert delivered(produced) == leases.target(), "elements that are repeated are delivered once"
    batches = pipe.iter_batches(debug=True)
    assert [batch["i"].tolist() for batch in batches] == [*FULL, *last]
    report = batches.report()
    assert (report.elements, report.left_out_elements) == ((12, 8) if tail == "drop" else (20, 0))
    assert [row["i"] for row in pipe.unbatch().iter_batches(debug=True)] == [i for rows in [*FULL, *last] for i in rows]


def test_keys_and_sizes_are_values_or_functions_and_lists_go_to_collate() -> None:
    for key in (lambda e: "ab"[e["i"] % 2], lambda e: (e["i"] % 2, None), lambda e: np.array(e["i"] % 2)):
        assert rows_by_key(run_engine(keyed(8, key, 2), order="strict")) == [[0, 2], [1, 3], [4, 6], [5, 7]]
    by_key = keyed(8, lambda e: e["i"] % 2, lambda key: 3 if key else 1)
    assert rows_by_key(run_engine(by_key, order="strict")) == [[0], [2], [4], [1, 3, 5], [6], [7]]
    lists = keyed(7, tail="fill", collate=lambda rows: {"n": len(rows), "each": [row["i"] for row in rows]})
    assert [batch["n"] for batch in lists.iter_batches(debug=True)] == [4, 4, 4]


@pytest.mark.parametrize(
    ("pipe", "error", "said"),
    [
        (lambda: keyed(key="h"), ColumnError, r"there is no column 'h' in element 0 .*; there are \['g', 'i'\]"),
        (lambda: keyed(key=lambda e: 1 // int(e["i"])), OpError, "group_by failed on element 0 .*: ZeroDivisionError"),
        (lambda: keyed(key=lambda e: [1]), OutputTypeError, r"key of element 0 .* is \[1\], but it must be one number"),
        (lambda: keyed(key=lambda e: np.nan), OutputTypeError, "key of element 0 .* is nan, but"),
        (lambda: keyed(key=lambda e: (1, np.nan)), OutputTypeError, "key of element 0 .* is .*nan.*, but"),
        (lambda: keyed(size=lambda key: 0), OutputTypeError, "size returned 0 for the key 0: it must return a whole"),
        (
            lambda: numbers(2, 9).map(lambda e: {"x": np.zeros(e["i"])}).group_by(lambda e: 0, 2),
            BatchShapeError,
            "group_by: column 'x'",
        ),
    ],
)
def test_what_cannot_be_grouped_is_refused_by_name(pipe: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        run_engine(pipe())


def test_a_key_that_fails_follows_the_on_error_policy() -> None:
    produced = run_engine(keyed(4, lambda e: 1 // int(e["i"])), on_error="skip", order="strict")
    assert rows_by_key(produced) == [[1], [2, 3]] and [bad.op for one in produced for bad in one.bad] == ["group_by"]


@pytest.mark.parametrize("tail", ["keep", "fill", "merge", "drop"])
def test_the_end_of_an_epoch_gives_each_rank_equally_many_batches(tail: Tail) -> None:
    for rows, ranks in ((53, 2), (53, 3), (48, 5), (4, 3), (2, 3)):
        pipe = keyed(rows, tail=tail)
        leases = [Lease(0, one.split, one.spans, passed=True) for one in whole_leases(tuple(pipe.plan.sources()))]
        produced = run_engine(pipe, leases, tail_ranks=ranks, order="strict")
        used = [one for one in produced if one.rank is not None]
        assert [one.rank for one in used] == list(range(ranks)) * (len(used) // ranks)
        assert all(one.partial for one in produced if one.rank is None and one.rows), "what no rank gets"
        left_out = rows - len(set(column(used, "i")))
        assert left_out < (4 * ranks + 9 if tail == "drop" else ranks)
        assert tail == "fill" or max(Counter(column(used, "i")).values(), default=1) == 1
        assert tail not in ("fill", "drop") or set(map(len, rows_by_key(used))) <= {4}
        assert sum(one.rows for one in used) == rows - left_out, "rows that repeat others count as no elements"
    ordinary = run_engine(keyed(53, tail=tail), tail_ranks=2, order="strict")
    assert {one.rank for one in ordinary if not one.partial} == {None}, "before that whoever has room gets a batch"
