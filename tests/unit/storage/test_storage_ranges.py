"""Answers of stores, checked against what was asked for."""

from __future__ import annotations

import pytest

from pecan_ray.errors import SourceError, SourceReplacedError
from pecan_ray.storage.ranges import WHOLE_BYTES, Asked, FileRange, ShortAnswerError

BODY = bytes(range(100))


def answer(asked: Asked, first: int, last: int, size: int = 100) -> FileRange:
    return asked.piece(206, f"bytes {first}-{last}/{size}", BODY[first : last + 1], "v")


def test_answers_are_what_was_asked_for_cut_where_the_store_ignores_ranges() -> None:
    for stop, header in ((None, "bytes=5-"), (8, "bytes=5-7")):
        assert Asked("p", 5, stop).header() == {"Range": header}
    assert Asked("p", 0, None).header() == {}
    assert answer(Asked("p", 5, 8), 5, 7) == FileRange(BODY[5:8], 100, "v")
    for stop in (200, None):
        assert answer(Asked("p", 90, stop), 90, 99) == FileRange(BODY[90:], 100, "v")
    assert Asked("p", 0, None).piece(200, None, BODY, "v") == FileRange(BODY, 100, "v")
    asked = Asked("s3://data/a", 5, 8)
    assert asked.piece(200, None, BODY, "v") == FileRange(BODY[5:8], 100, "v")
    assert asked.piece(200, "bytes 5-7/100", BODY[5:8], "v") == FileRange(BODY[5:8], 100, "v")
    asked.check_size(200, WHOLE_BYTES)
    asked.check_size(206, WHOLE_BYTES + 1)
    Asked("s3://data/a", 0, None).check_size(200, WHOLE_BYTES + 1)
    with pytest.raises(SourceError, match=r"s3://data/a: the store ignores ranges: .* all 67,108,865 bytes"):
        asked.check_size(200, WHOLE_BYTES + 1)
    with pytest.raises(SourceError, match="an object of unknown size"):
        asked.check_size(200, None)


def test_fewer_bytes_are_asked_for_again_and_other_ranges_refused() -> None:
    asked = Asked("p", 5, 8)
    for last in (7, 6):
        with pytest.raises(ShortAnswerError, match="2 bytes came of 3"):
            asked.piece(206, f"bytes 5-{last}/100", BODY[5:7], "v")
    for status, length in ((200, "100"), (200, None), (200, "?"), (206, "200")):
        asked.check_whole(status, length, BODY)
    with pytest.raises(ShortAnswerError, match="100 bytes came of 200"):
        asked.check_whole(200, "200", BODY)
    for first, last in ((0, 7), (6, 8), (5, 8)):
        with pytest.raises(SourceError, match="asked for bytes 5 to 8, the store sends"):
            answer(asked, first, last)
    for told in (None, "", "bytes 5-7/*", "octets 5-7/100"):
        with pytest.raises(SourceError, match="does not say which range"):
            asked.piece(206, told, BODY[5:8], "v")
    assert Asked("p", 200, 300).nothing("bytes */100") == FileRange(b"", 100)
    for told in (None, "", "bytes */*"):
        with pytest.raises(SourceError, match="p: the store says that nothing lies behind byte 200, and does not say"):
            Asked("p", 200, 300).nothing(told)
    for within in (Asked("p", 0, None), asked, Asked("p", 0, 8)):
        with pytest.raises(SourceError, match="nothing lies behind byte"):
            within.nothing("bytes */100")


def test_another_version_and_an_answer_of_another_than_the_store_are_refused() -> None:
    with pytest.raises(SourceReplacedError, match="s3://data/a was replaced since it was listed"):
        Asked("s3://data/a", 0, None, "old").check_version("new")
    for wanted, told in (("old", "old"), ("old", ""), ("", "new")):
        Asked("s3://data/a", 0, None, wanted).check_version(told)
    asked = Asked("s3://data/a", 0, None, "v")
    asked.check_response_source(200, "v")
    asked.check_response_source(206, "")
    Asked("s3://data/a", 0, None).check_response_source(200, "")
    for status in (200, 204):
        with pytest.raises(SourceError, match=r"s3://data/a: the answer \(status 20.\) names no version"):
            asked.check_response_source(status, "")
