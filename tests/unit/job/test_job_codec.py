"""The codec: every event and instruction comes back as it was, and a job that is replayed from its log is the same."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.errors import ClusterError, JournalError, OpError, PecanError
from pecan_ray.job import codec, events, trainer_events
from pecan_ray.job.codec import FORMAT_VERSION, MESSAGES, JobMessage, decode, encode
from pecan_ray.job.events import Event, JobFailed, SplitsListed, TimePassed, TrainerCame
from pecan_ray.job.instructions import Instruction
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.state import JobState
from pecan_ray.job.trainer_events import TrainerEvent, TrainerInstruction
from pecan_ray.options import Workers
from pecan_ray.plan.splits import Split
from pecan_ray.sampling.randomness import SplitOrder
from tests.long_form import examples
from tests.unit.job.job_play import play

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
    members = [*get_args(Event), *get_args(TrainerEvent), *get_args(Instruction), *get_args(TrainerInstruction)]
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


def test_what_was_a_list_or_spans_comes_back_as_tuples_and_numbers_of_numpy_as_numbers() -> None:
    import numpy as np

    from pecan_ray.job.messages import EndData
    from pecan_ray.sampling.spans import Span, Spans

    spans: dict[tuple[int, int, int], Iterable[Span]] = {(0, 0, 1): Spans([(0, 4)]), (0, 0, 2): [(1, 2)]}
    told = events.WorkerAsked("w", "main", 1, EndData(0, spans, rows=int(np.int64(3))))
    back = decode(encode(told))
    assert isinstance(back, events.WorkerAsked) and isinstance(back.question, EndData)
    assert back.question.spans == {(0, 0, 1): ((0, 4),), (0, 0, 2): ((1, 2),)} and back.question.rows == 3


def test_a_payload_of_any_kind_comes_back() -> None:
    split = Split(0, payload={"groups": [1, 2], "path": Path("a")}, files=("x",))
    assert decode(encode(SplitsListed(0, (split,)))) == SplitsListed(0, (split,))


def test_a_payload_that_cannot_be_pickled_is_refused_and_named() -> None:
    with pytest.raises(JournalError, match="cannot be written"):
        encode(SplitsListed(0, (Split(0, payload=lambda: None),)))


def test_an_error_keeps_its_type_message_and_fields() -> None:
    written = encode(JobFailed(OpError("decode failed", op="decode", element=3)))
    assert written["fields"]["error"]["type"] == "OpError" and written["fields"]["error"]["message"] == "decode failed"
    back = decode(written)
    assert isinstance(back, JobFailed) and isinstance(back.error, OpError) and back.error.element == 3


def test_an_error_that_cannot_be_pickled_keeps_its_type_and_message_in_words() -> None:
    class LocalError(Exception):
        pass

    back = decode(encode(JobFailed(LocalError("no way"))))
    assert isinstance(back, JobFailed) and isinstance(back.error, PecanError)
    assert str(back.error) == "LocalError: no way"


def test_an_error_whose_class_is_not_here_keeps_its_type_and_message_in_words() -> None:
    written = encode(JobFailed(ValueError("no way")))
    written["fields"]["error"]["pickle"] = "AAAA"
    back = decode(written)
    assert isinstance(back, JobFailed) and str(back.error) == "ValueError: no way"


@pytest.mark.parametrize("version", [None, 0, FORMAT_VERSION + 1, "1"])
def test_another_version_is_refused(version: object) -> None:
    with pytest.raises(JournalError, match=f"format {version!r} cannot be read: this is format {FORMAT_VERSION}"):
        decode({**encode(TimePassed()), "version": version})


@pytest.mark.parametrize("name", [None, "TrainerWent", "object", 7, ["TimePassed"]])
def test_an_unknown_type_is_refused(name: object) -> None:
    with pytest.raises(JournalError, match="no event and no instruction"):
        decode({**encode(TimePassed()), "type": name})


@pytest.mark.parametrize(
    "fields", [None, [], {"rank": 1}, {"rank": "one", "incarnation": "t", "node": "n"}, {"rnak": 1}, {"rank": {}}]
)
def test_what_is_damaged_is_refused(fields: object) -> None:
    with pytest.raises(JournalError, match="TrainerCame in a journal is damaged"):
        decode({**encode(TrainerCame(0, "t", "n")), "fields": fields})


def test_a_field_that_is_left_out_has_its_default() -> None:
    written = encode(TrainerCame(0, "t", "n", (("map", "1"),)))
    del written["fields"]["described"]
    assert decode(written) == TrainerCame(0, "t", "n")


def test_what_is_neither_event_nor_instruction_is_refused() -> None:
    with pytest.raises(JournalError, match="Split is no event"):
        encode(Split(0))  # type: ignore[arg-type]  # this is the test


def test_a_type_that_cannot_be_written_is_refused_when_it_is_met(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclasses.dataclass(frozen=True)
    class Odd:
        value: complex

    Odd.__annotations__["value"] = complex
    monkeypatch.setitem(codec.MESSAGES, "Odd", Odd)
    with pytest.raises(JournalError, match="complex"):
        encode(Odd(1j))  # type: ignore[arg-type]  # this is the test


SHAPES = [
    LedgerShape(epochs=2, batch_size=3),
    LedgerShape(epochs=2, batch_size=3, world_size=3, orders=(SplitOrder(1),)),
    LedgerShape(epochs=2, batch_size=2, world_size=2, serial=True),
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", SHAPES, ids=["one rank", "three ranks", "whole plan"])
def test_a_job_that_is_replayed_from_its_log_is_the_same(shape: LedgerShape, seed: int) -> None:
    rig = play(shape, Workers(3), [5, 0, 7, 2], random.Random(seed))
    assert rig.job.ledger.finished and len(rig.log) > 30
    journal = [(at, json.dumps(encode(event))) for at, event in rig.log]
    again = JobState(rig.spec, 0.0)
    told = []
    for at, line in journal:
        event = decode(json.loads(line))
        told.append(again.handle(event, at))  # type: ignore[arg-type]  # the log has events alone
    assert again.facts(rig.now) == rig.job.facts(rig.now)
    assert [again.orders(rank) for rank in range(shape.world_size)] == [
        rig.job.orders(rank) for rank in range(shape.world_size)
    ]
    assert [list(map(encode, done)) for done in told] == [list(map(encode, done)) for done in rig.done]


def test_trainer_events_replay_as_well() -> None:
    batch = trainer_events.ReceivedBatch(1, "w", 0, {(0, 0, 0): ((0, 4),)}, 2, 10)
    came = trainer_events.BatchesCame("w", (batch,))
    assert decode(encode(came)) == came
