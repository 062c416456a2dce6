"""Answers of stores, checked against what was asked for."""

from __future__ import annotations

import pytest

from pecan_ray.errors import SourceError, SourceReplacedError
from pecan_ray.storage.ranges import WHOLE_BYTES, FileRange, RangeRequest, ShortResponseError

BODY = bytes(range(100))


def answer(asked: RangeRequest, first: int, last: int, size: int = 100) -> FileRange:
    return asked.parse_response(206, f"bytes {first}-{last}/{size}", BODY[first : last + 1], "v")


def test_answers_are_what_was_asked_for_cut_where_the_store_ignores_ranges() -> None:
    for stop, header in ((None, "bytes=5-"), (8, "bytes=5-7")):
        assert RangeRequest("p", 5, stop).header() == {"Range": header}
    assert RangeRequest("p", 0, None).header() == {}
    assert answer(RangeRequest("p", 5, 8), 5, 7) == FileRange(BODY[5:8], 100, "v")
    for stop in (200, None):
        assert answer(RangeRequest("p", 90, stop), 90, 99) == FileRange(BODY[90:], 100, "v")
    assert RangeRequest("p", 0, None).parse_response(200, None, BODY, "v") == FileRange(BODY, 100, "v")
    asked = RangeRequest("s3://data/a", 5, 8)
    assert asked.parse_response(200, None, BODY, "v") == FileRange(BODY[5:8], 100, "v")
    assert asked.parse_response(200, "bytes 5-7/100", BODY[5:8], "v") == FileRange(BODY[5:8], 100, "v")
    asked.check_size(200, WHOLE_BYTES)
    asked.check_size(206, WHOLE_BYTES + 1)
    RangeRequest("s3://data/a", 0, None).check_size(200, WHOLE_BYTES + 1)
    with pytest.raises(SourceError, match=r"s3://data/a: the store ignores ranges: .* all 67,108,865 bytes"):
        asked.check_size(200, WHOLE_BYTES + 1)
    with pytest.raises(SourceError, match="an object of unknown size"):
        asked.check_size(200, None)


def test_fewer_bytes_are_asked_for_again_and_other_ranges_refused() -> None:
    asked = RangeRequest("p", 5, 8)
    for last in (7, 6):
        with pytest.raises(ShortResponseError, match="2 bytes came of 3"):
            asked.parse_response(206, f"bytes 5-{last}/100", BODY[5:7], "v")
    for status, length in ((200, "100"), (200, None), (200, "?"), (206, "200")):
        asked.check_whole(status, length, BODY)
    with pytest.raises(ShortResponseError, match="100 bytes came of 200"):
        asked.check_whole(200, "200", BODY)
    for first, last in ((0, 7), (6, 8), (5, 8)):
        with pytest.raises(SourceError, match="asked for bytes 5 to 8, the store sends"):
            answer(asked, first, last)
    for told in (None, "", "bytes 5-7/*", "octets 5-7/100"):
        with pytest.raises(SourceError, match="does not say which range"):
            asked.parse_response(206, told, BODY[5:8], "v")
    assert RangeRequest("p", 200, 300).nothing("bytes */100") == FileRange(b"", 100)
    for told in (None, "", "bytes */*"):
        with pytest.raises(SourceError, match="p: the store says that nothing lies behind byte 200, and does not say"):
            RangeRequest("p", 200, 300).nothing(told)
    for within in (RangeRequest("p", 0, None), asked, RangeRequest("p", 0, 8)):
        with pytest.raises(SourceError, match="nothing lies behind byte"):
            within.nothing("bytes */100")


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
