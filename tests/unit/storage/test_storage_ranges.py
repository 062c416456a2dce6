"""What answers of stores are taken for, by what was asked for, written down: what is cut, asked for again, refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from pecan_ray.errors import SourceError, SourceReplacedError
from pecan_ray.storage.ranges import WHOLE_BYTES, FileRange, RangeRequest, ShortResponseError

WRITTEN = Path(__file__).with_name("answers.txt")
"""A line for each answer; `python -m tests.unit.storage.test_storage_ranges` writes all anew."""
BODY = bytes(range(100))
ASKED = {"all": (0, None), "5 to 8": (5, 8), "90 to 200": (90, 200), "200 to 300": (200, 300)}
SENT: dict[str, tuple[int, str | None, bytes]] = {
    "200 with all": (200, None, BODY),
    **{f"206 with {told!r}": (206, told, BODY[5:8]) for told in ("bytes 5-7/100", "bytes 5-6/100", "bytes 5-8/100")},
    **{f"206 with {told!r}": (206, told, BODY[90:]) for told in ("bytes 90-99/100", "bytes 0-9/100")},
    **{f"206 with {told!r}": (206, told, BODY[5:8]) for told in (None, "", "bytes 5-7/*", "octets 5-7/100")},
    "200 with a range": (200, "bytes 5-7/100", BODY[5:8]),
}


def outcome(call: Callable[[], FileRange | None]) -> str:
    try:
        found = call()
    except (SourceError, ShortResponseError) as error:
        return f"{type(error).__name__}: {error}"
    return "is as it should be" if found is None else f"{found.data[:1]!r}.. {len(found.data)} of {found.size}"


def answers() -> Iterator[str]:
    """Yield what comes of each answer."""
    for name, (start, stop) in ASKED.items():
        asked = RangeRequest("s3://data/a", start, stop, "v1")
        calls: dict[str, Callable[[], FileRange | None]] = {
            **{sent: partial(asked.parse_response, *given, "v1") for sent, given in SENT.items()},
            **{f"nothing, {told!r}": partial(asked.nothing, told) for told in ("bytes */100", None, "", "bytes */*")},
            **{
                f"length {length}": partial(asked.check_whole, 200, length, BODY)
                for length in ("100", "200", None, "?")
            },
            **{
                f"{status} of {size}": partial(asked.check_size, status, size)
                for status in (200, 206)
                for size in (WHOLE_BYTES, WHOLE_BYTES + 1, None)
            },
            **{f"version {version!r}": partial(asked.check_version, version) for version in ("v1", "v2", "")},
            **{
                f"{status} from {version!r}": partial(asked.check_response_source, status, version)
                for status in (200, 204, 206)
                for version in ("v1", "")
            },
        }
        yield f"{name}: {asked.header()}"
        yield from (f"{name}, {sent}: {outcome(call)}" for sent, call in calls.items())


def test_answers_of_stores_are_taken_for_what_is_written_down() -> None:
    assert list(answers()) == WRITTEN.read_text().splitlines()


def test_who_has_no_version_takes_any() -> None:
    for asked, told in (("old", "old"), ("old", ""), ("", "new")):
        RangeRequest("s3://data/a", 0, None, asked).check_version(told)
    RangeRequest("s3://data/a", 0, None).check_response_source(200, "")
    with pytest.raises(SourceReplacedError, match="s3://data/a was replaced since it was listed"):
        RangeRequest("s3://data/a", 0, None, "old").check_version("new")


if __name__ == "__main__":
    WRITTEN.write_text("\n".join(answers()) + "\n")
