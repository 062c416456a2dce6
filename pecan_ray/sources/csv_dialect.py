"""How the lines of a CSV file are to be understood, and which lines that does not allow."""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pecan_ray.errors import PlanError
from pecan_ray.sources.lines import UTF_8, BadLines, TextLine, filled

LINE_ENDS = (10, 13)
"""The bytes of a line feed and of a carriage return."""


def _check_character(name: str, value: object) -> None:
    if not isinstance(value, str) or len(value) != 1 or not value.isascii() or value in "\r\n\0":
        raise PlanError(f"{name} must be one ASCII character, and no line end, but got {value!r}.")


@dataclass(frozen=True)
class CsvDialect:
    """The characters that separate, quote, escape and comment; each is one of ASCII, or None.

    Inside of a quoted value a quote is doubled, or with `escape` written behind that, which stands for itself before
    any other character.  Outside of quoted values quotes and escapes are characters as all others.
    """

    delimiter: str
    quote: str | None
    escape: str | None
    comment: str | None
    encoding: str

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in ("delimiter", "quote", "escape", "comment")}
        for name, value in given.items():
            if value is not None or name == "delimiter":
                _check_character(name, value)
        characters = [value for value in given.values() if value is not None]
        if len(set(characters)) < len(characters):
            raise PlanError(f"delimiter, quote, escape and comment must be different characters, but got {given}.")
        if self.escape is not None and self.quote is None:
            raise PlanError("escape is what stands before a quote inside of quoted values: it needs a quote.")

    def is_comment(self, line: bytes) -> bool:
        """Tell whether a line is a comment."""
        return self.comment is not None and line.startswith(self.comment.encode())

    def in_utf_8(self, lines: Iterator[TextLine], bad: BadLines) -> Iterator[TextLine]:
        """Yield lines in UTF-8; those that are not in the encoding are noted in `bad`."""
        for line in lines:
            if line.number in bad.rejected:
                yield line
                continue
            try:
                yield line._replace(data=line.data.decode(self.encoding).encode())
            except UnicodeError as error:
                bad.rejected[line.number] = f"it is not {self.encoding.upper()} ({error})"
                yield line

    def records(self, records: Iterator[TextLine], bad: BadLines) -> Iterator[TextLine]:
        """Yield the records that are not empty, with quotes doubled; those that cannot be are noted in `bad`."""
        found = filled(records, bad.split, is_only_line_end)
        return found if self.escape is None else self._unescape_records(found, bad)

    def _unescape_records(self, records: Iterator[TextLine], bad: BadLines) -> Iterator[TextLine]:
        for record in records:
            if record.number not in bad.rejected:
                try:
                    record = record._replace(data=self._without_escapes(record.data))
                except ValueError as error:
                    bad.rejected[record.number] = str(error)
            yield record

    def changes_quote_state(self, data: bytes) -> bool:
        """Tell whether a quoted value is open behind a line and was not before, or the other way round."""
        if self.quote is None:
            return False
        if self.escape is not None:
            # An escaped quote neither opens nor closes a value.
            data = _regex(rb"%s[^\r\n]" % _regex_escape(self.escape)).sub(b"", data)
        return data.count(self.quote.encode()) % 2 == 1

    def fields(self, line: bytes) -> list[str]:
        """Return the values of a line; raises ValueError or csv.Error for one that is none."""
        quoting: Any = {"quoting": csv.QUOTE_NONE} if self.quote is None else {"quotechar": self.quote}
        text = line.removesuffix(b"\r").decode(UTF_8)
        (fields,) = csv.reader([text], delimiter=self.delimiter, strict=True, **quoting)
        return fields

    def parts_without_quote(self, line: bytes) -> list[bytes]:
        """Return the parts of a line that are not quoted."""
        line = line.removesuffix(b"\r")
        return [line] if self.quote is None else line.split(self.quote.encode())[::2]

    def mismatches(self, data: bytes, lines: Sequence[TextLine]) -> str:
        """Return what is wrong with quotes in lines whose quotes are doubled; empty if nothing is."""
        if self.quote is None or self.escape is not None or self._has_valid_quoting(data):
            return ""
        for line in lines:
            if self.quote.encode() in line.data and not self._escape_pattern.fullmatch(line.data.removesuffix(b"\r")):
                return (
                    "text stands behind the quote that closes a value. Quotes inside of quoted values must be doubled; "
                    f"say escape={chr(92)!r} if a backslash stands before them, quote=None if quotes are text"
                )
        return ""

    def _has_valid_quoting(self, data: bytes) -> bool:
        """Tell by bytes whether every second quote closes a value, or is doubled; False: lines must be looked at."""
        assert self.quote is not None
        found = np.frombuffer(data, np.uint8)
        places = np.flatnonzero(found == ord(self.quote))
        if len(places) % 2:
            return False
        # What may stand before a quote that opens, and behind one that closes.
        beside = np.zeros(256, bool)
        beside[[ord(self.quote), ord(self.delimiter), *LINE_ENDS]] = True
        opens, closes = places[::2], places[1::2]
        begins = beside[found[opens[opens > 0] - 1]]
        ends = beside[found[closes[closes + 1 < len(found)] + 1]]
        return bool(begins.all() and ends.all())

    def _without_escapes(self, line: bytes) -> bytes:
        assert self.quote is not None and self.escape is not None
        quote, escape = self.quote.encode(), self.escape.encode()
        # As most lines.
        if quote not in line and escape not in line:
            return line
        end = b"\r" if line.endswith(b"\r") else b""
        body = line.removesuffix(b"\r")
        if not self._with_escapes.fullmatch(body):
            raise ValueError(
                f"its quotes are not those of a value in {self.quote} with {self.escape} before each quote inside; "
                "where quotes are doubled leave escape out"
            )

        def escape_quote(found: re.Match[bytes]) -> bytes:
            return quote * 2 if found[1] == quote else escape

        def value(found: re.Match[bytes]) -> bytes:
            inner = found[2]
            if inner is None:
                return found[0]
            return found[1] + quote + self._escapes.sub(escape_quote, inner) + quote

        return self._one_value.sub(value, body) + end

    @property
    def _escape_pattern(self) -> re.Pattern[bytes]:
        q, d = _regex_escape(self.quote), _regex_escape(self.delimiter)
        value = rb"(?:%s[^%s]*(?:%s%s[^%s]*)*%s|(?:[^%s%s][^%s]*)?)" % (q, q, q, q, q, q, q, d, d)
        return _regex(rb"(?:%s%s)*%s" % (value, d, value))

    @property
    def _with_escapes(self) -> re.Pattern[bytes]:
        q, d, e = _regex_escape(self.quote), _regex_escape(self.delimiter), _regex_escape(self.escape)
        quoted = rb"%s[^%s%s]*(?:%s[\x00-\xff][^%s%s]*)*%s" % (q, q, e, e, q, e, q)
        # Outside of quotes readers disagree about an escape before a quote or delimiter.
        plain = rb"(?:(?:[^%s%s%s]|%s(?![%s%s]))(?:[^%s%s]|%s(?![%s%s]))*)?" % (q, d, e, e, q, d, d, e, e, q, d)
        return _regex(rb"(?:(?:%s|%s)%s)*(?:%s|%s)" % (quoted, plain, d, quoted, plain))

    @property
    def _one_value(self) -> re.Pattern[bytes]:
        q, d, e = _regex_escape(self.quote), _regex_escape(self.delimiter), _regex_escape(self.escape)
        return _regex(rb"(^|%s)(?:%s([^%s%s]*(?:%s[\x00-\xff][^%s%s]*)*)%s|[^%s]*)" % (d, q, q, e, e, q, e, q, d))

    @property
    def _escapes(self) -> re.Pattern[bytes]:
        q, e = _regex_escape(self.quote), _regex_escape(self.escape)
        return _regex(rb"%s(%s|%s)" % (e, q, e))


def is_only_line_end(data: bytes) -> bool:
    """Tell whether a line has nothing but its end, or not even that."""
    return data in (b"", b"\r")


@functools.cache
def _regex(pattern: bytes) -> re.Pattern[bytes]:
    return re.compile(pattern)


def _regex_escape(character: str | None) -> bytes:
    """Return a character for a regular expression, inside of brackets and outside."""
    assert character is not None
    return b"\\x%02x" % ord(character)
