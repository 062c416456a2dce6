"""The codec: every event and instruction comes back as it was, and a job that is replayed from its log is the same."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.errors import ClusterError, JournalError, OpError, PecanError
from pecan_ray.job import events
from pecan_ray.job.codec import FORMAT_VERSION, MESSAGES, JobMessage, decode, encode
from pecan_ray.job.events import Event, JobFailed, SplitPageReceived, TrainerRegistered
from pecan_ray.job.instructions import Instruction, Response
from pecan_ray.job.messages import EndData
from pecan_ray.plan.splits import Lease, Split
from pecan_ray.sampling.spans import PackedSpans, Span, Spans
from tests.long_form import examples

TEXT = st.text(max_size=8) | st.sampled_from(["", "a\nb", "naïve", "\udc80", '"', "{}"])
NUMBERS = st.floats() | st.integers(-(1 << 40), 1 << 40).map(float)
ERRORS = st.builds(OpError, TEXT, op=TEXT, element=st.integers()) | st.builds(ValueError, TEXT)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT | st.binary(max_size=8) | NUMBERS,
    lambda inside: st.tuples(inside, inside) | st.tuples(),
    max_leaves=5,
)


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values of an annotation; a type that is not known here fails."""
    known: dict[Any, st.SearchStrategy[Any]] = {
        bool: st.booleans(),
        int: st.integers(),
        str: TEXT,
        float: NUMBERS,
        type(None): st.none(),
        Any: ANYTHING | st.dictionaries(TEXT, st.integers(), max_size=2),
        Hashable: ANYTHING,
        BaseException: ERRORS,
        PecanError: st.builds(ClusterError, TEXT),
    }
    if hint in known:
        return known[hint]
    if dataclasses.is_dataclass(hint):
        return st.deferred(lambda: instances_of(hint))
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple and arguments[-1] is not ...:
        return st.tuples(*map(values_of, arguments))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=3)
    if isinstance(origin, type) and issubclass(origin, Iterable):
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    return st.one_of([values_of(member) for member in arguments])


def draws_of(kind: Any) -> st.SearchStrategy[Any]:
    """Instances of a dataclass with every field drawn."""
    hints = get_type_hints(kind)
    return st.builds(kind, **{field.name: values_of(hints[field.name]) for field in dataclasses.fields(kind)})


instances_of: Callable[[Any], st.SearchStrategy[Any]] = cache(draws_of)


def test_every_event_and_instruction_is_known_to_the_codec_by_a_name_of_its_own() -> None:
    members = [*get_args(Event), *get_args(Instruction)]
    assert sorted(MESSAGES) == sorted(kind.__name__ for kind in members)
    assert set(MESSAGES.values()) == set(members) and len(members) == len(MESSAGES)


@pytest.mark.parametrize("kind", MESSAGES.values(), ids=list(MESSAGES))
def test_every_event_and_instruction_comes_back_as_it_was(kind: type[Any]) -> None:
    @examples(40)
    @given(instances_of(kind))
    def comes_back(message: JobMessage) -> None:
        line = json.dumps(encode(message), allow_nan=False)
        back = decode(json.loads(line))
        assert type(back) is kind and back is not message
        assert repr(back) == repr(message), "equal in all types and values, with errors and what is no number"
        assert json.dumps(encode(back), allow_nan=False) == line

    comes_back()


def test_lists_and_spans_come_back_as_tuples_numbers_of_numpy_as_numbers_and_payloads_as_they_were() -> None:
    packed = PackedSpans(np.array([(1, 2)]))
    spans: dict[tuple[int, int, int], Iterable[Span]] = {(0, 0, 1): Spans([(0, 4)]), (0, 0, 2): packed}
    told = events.WorkerRequestReceived("w", "main", 1, EndData(0, spans, rows=int(np.int64(3))))
    back = decode(encode(told))
    assert isinstance(back, events.WorkerRequestReceived) and isinstance(back.request, EndData)
    assert back.request.spans == {(0, 0, 1): ((0, 4),), (0, 0, 2): ((1, 2),)} and back.request.rows == 3
    for reply in ((Lease(0, Split(0)),), (), "flush"):
        assert decode(encode(Response("w", "main", 1, reply))) == Response("w", "main", 1, reply)
    split = Split(0, payload={"groups": [1, 2], "path": Path("a")}, files=("x",))
    assert decode(encode(SplitPageReceived(0, (split,)))) == SplitPageReceived(0, (split,))


class LocalError(Exception):
    """Cannot be pickled."""

    def __reduce__(self) -> str:
        raise TypeError("no pickle")


def test_an_error_keeps_its_type_message_and_fields_and_in_words_what_cannot_be_made_again() -> None:
    written = encode(JobFailed(OpError("decode failed", op="decode", element=3)))
    assert written["fields"]["error"]["type"] == "OpError" and written["fields"]["error"]["message"] == "decode failed"
    back = decode(written)
    assert isinstance(back, JobFailed) and isinstance(back.error, OpError) and back.error.element == 3
    back = decode(encode(JobFailed(LocalError("no way"))))
    assert isinstance(back, JobFailed) and isinstance(back.error, PecanError)
    assert str(back.error) == "LocalError: no way"
    written = encode(JobFailed(ValueError("no way")))
    written["fields"]["error"]["pickle"] = "AAAA"  # of a class that is not here
    back = decode(written)
    assert isinstance(back, JobFailed) and str(back.error) == "ValueError: no way"


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        (
            {"version": FORMAT_VERSION + 1},
            f"format {FORMAT_VERSION + 1} cannot be read: this is format {FORMAT_VERSION}",
        ),
        ({"version": str(FORMAT_VERSION)}, "cannot be read"),
        ({"type": "object"}, "no event and no instruction"),
        ({"type": ["x"]}, "no event and no instruction"),
        ({"fields": None}, "TrainerRegistered in a journal is damaged"),
        ({"fields": {"rank": 1}}, "TrainerRegistered in a journal is damaged"),
        ({"fields": {"rank": "one", "incarnation": "t", "node": "n"}}, "TrainerRegistered in a journal is damaged"),
        ({"fields": {"rnak": 1}}, "TrainerRegistered in a journal is damaged"),
    ],
)
def test_another_version_an_unknown_type_and_damage_are_refused(changes: dict[str, object], match: str) -> None:
    with pytest.raises(JournalError, match=match):
        decode({**encode(TrainerRegistered(0, "t", "n")), **changes})


def test_a_field_that_is_left_out_has_its_default() -> None:
    written = encode(TrainerRegistered(0, "t", "n", (("map", "1"),)))
    del written["fields"]["description"]
    assert decode(written) == TrainerRegistered(0, "t", "n")


def test_what_cannot_be_written_is_refused_and_named() -> None:
    with pytest.raises(JournalError, match="cannot be written"):
        encode(SplitPageReceived(0, (Split(0, payload=lambda: None),)))
    nothing: Any = Split(0)
    with pytest.raises(JournalError, match="Split is no event"):
        encode(nothing)
