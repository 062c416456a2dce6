"""Sets of positions: whatever is added and removed, one by one or many at a time, they are sets."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pecan_ray.sampling.spans as spans_module
from pecan_ray.sampling.spans import PackedSpans, Spans, bounds_of, merged, one_after_the_other, packed
from tests.long_form import examples

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(-1, 9)).map(lambda one: (one[0], sum(one))), max_size=6)


@examples(1000)
@given(st.lists(st.tuples(st.sampled_from(["add", "remove", "remove_all", "remove_packed", "ask"]), SPANS), max_size=8))
def test_a_set_of_spans_is_a_set(steps: list[tuple[str, list[tuple[int, int]]]]) -> None:
    spans, expected = Spans(), set[int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spans_module, "MANY", 2)
        patch.setattr(spans_module, "MOST_WAITING", 5)
        for step, given in steps:
            assert list(merged(given)) == list(Spans(given)), "many at a time"
            numbers = {n for start, stop in given for n in range(start, stop)}
            if step == "ask":
                assert {place for place in range(40) if place in spans} == expected
                assert bool(spans) == bool(expected) and spans.size() == len(expected)
            elif step == "remove_all":
                spans.remove_all(given)
            elif step == "remove_packed":
                spans.remove_all(PackedSpans(bounds_of(given)))
            else:
                for span in given:
                    getattr(spans, step)(*span)
            expected = expected | numbers if step == "add" else expected - numbers if "remove" in step else expected
        assert bool(spans) == bool(expected)
    assert all(merged(given) == tuple(Spans(given)) for _, given in steps)
    for start, stop in (span for _, given in steps for span in given):
        assert spans.contains_all(start, stop) == (set(range(start, stop)) <= expected)
    found = list(spans)
    assert {n for start, stop in found for n in range(start, stop)} == expected
    assert all(start < stop for start, stop in found) and found == sorted(found)
    assert not {stop for _, stop in found} & {start for start, _ in found}, "neighbours are one"


def test_packed_spans_are_the_spans_that_were_packed_also_behind_others_and_in_another_process() -> None:
    spans = [(3, 4), (1 << 61, 1 << 62)]
    as_one = PackedSpans(bounds_of(spans))
    assert pickle.loads(pickle.dumps(as_one)) == as_one == spans
    assert one_after_the_other([[(0, 1)], as_one]) == [(0, 1), *spans] and as_one[1] == spans[1]
    assert all(type(place) is int for span in as_one for place in span)
    assert isinstance(packed(as_one.bounds), list), "a few are sooner read as they are"
    assert isinstance(packed(bounds_of(spans * spans_module.MANY)), PackedSpans)
