"""Answers of stores, checked against what was asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from pecan_ray.errors import SourceError, SourceReplacedError
from pecan_ray.storage.ranges import WHOLE_BYTES, FileRange, RangeRequest, ShortResponseError

BODY = bytes(range(100))


WITHIN, WHOLE, BEHIND = RangeRequest("s3://data/a", 5, 8), RangeRequest("p", 0, None), RangeRequest("p", 200, 300)


def test_answers_are_what_was_asked_for_cut_where_the_store_ignores_ranges() -> None:
    assert [one.header().get("Range") for one in (WITHIN, WHOLE)] == ["bytes=5-7", None]
    assert RangeRequest("p", 5, None).header() == {"Range": "bytes=5-"}
    answers: list[tuple[RangeRequest, int, str | None, bytes, bytes]] = [
        (WITHIN, 206, "bytes 5-7/100", BODY[5:8], BODY[5:8]),
        (WITHIN, 200, "bytes 5-7/100", BODY[5:8], BODY[5:8]),
        (WITHIN, 200, None, BODY, BODY[5:8]),
        (RangeRequest("p", 90, 200), 206, "bytes 90-99/100", BODY[90:], BODY[90:]),
        (RangeRequest("p", 90, None), 206, "bytes 90-99/100", BODY[90:], BODY[90:]),
        (WHOLE, 200, None, BODY, BODY),
    ]
    for asked, status, told, body, wanted in answers:
        assert asked.parse_response(status, told, body, "v") == FileRange(wanted, 100, "v")
    assert BEHIND.nothing("bytes */100") == FileRange(b"", 100)
    for asked, status, size in (
        (WITHIN, 200, WHOLE_BYTES),
        (WITHIN, 206, WHOLE_BYTES + 1),
        (WHOLE, 200, WHOLE_BYTES + 1),
    ):
        asked.check_size(status, size)
    for status, length in ((200, "100"), (200, None), (200, "?"), (206, "200")):
        WITHIN.check_whole(status, length, BODY)


IGNORES = "s3://data/a: the store ignores ranges: .*"
REFUSED: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: WITHIN.check_size(200, WHOLE_BYTES + 1), SourceError, f"{IGNORES} all 67,108,865 bytes"),
    (lambda: WITHIN.check_size(200, None), SourceError, f"{IGNORES} an object of unknown size"),
    (lambda: WITHIN.check_whole(200, "200", BODY), ShortResponseError, "100 bytes came of 200"),
    *(
        (partial(WITHIN.parse_response, 206, told, BODY[5:7], "v"), ShortResponseError, "2 bytes came of 3")
        for told in ("bytes 5-7/100", "bytes 5-6/100")
    ),
    *(
        (partial(WITHIN.parse_response, 206, told, BODY, "v"), SourceError, "asked for bytes 5 to 8, the store sends")
        for told in ("bytes 0-7/100", "bytes 6-8/100", "bytes 5-8/100")
    ),
    *(
        (partial(WITHIN.parse_response, 206, told, BODY[5:8], "v"), SourceError, "does not say which range")
        for told in (None, "", "bytes 5-7/*", "octets 5-7/100")
    ),
    *(
        (partial(BEHIND.nothing, told), SourceError, "nothing lies behind byte 200, and does not say")
        for told in (None, "", "bytes */*")
    ),
    *((partial(one.nothing, "bytes */100"), SourceError, "nothing lies behind byte") for one in (WITHIN, WHOLE)),
]


@pytest.mark.parametrize(("call", "error", "said"), REFUSED)
def test_fewer_bytes_are_asked_for_again_and_other_ranges_refused(
    call: Callable[[], object], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        call()


def test_another_version_and_an_answer_of_another_than_the_store_are_refused() -> None:
    with pytest.raises(SourceReplacedError, match="s3://data/a was replaced since it was listed"):
        RangeRequest("s3://data/a", 0, None, "old").check_version("new")
    for wanted, told in (("old", "old"), ("old", ""), ("", "new")):
        RangeRequest("s3://data/a", 0, None, wanted).check_version(told)
    asked = RangeRequest("s3://data/a", 0, None, "v")
    asked.check_response_source(200, "v")
    asked.check_response_source(206, "")
    RangeRequest("s3://data/a", 0, None).check_response_source(200, "")
    for status in (200, 204):
        with pytest.raises(SourceError, match=r"s3://data/a: the answer \(status 20.\) names no version"):
            asked.check_response_source(status, "")
