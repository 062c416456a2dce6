"""Which tests run a line, from what pytest-cov has seen (`--cov-context=test`)."""

from __future__ import annotations

from pathlib import Path

from coverage import CoverageData


class TestsOfLines:
    """The tests that run the lines of files."""

    __test__ = False

    def __init__(self, seen: Path) -> None:
        """`seen`: what was seen by a run of all tests."""
        self._data = CoverageData(str(seen))
        self._data.read()

    def of(self, file: str, line: int) -> list[str]:
        """Return the tests that run a line; of one that an import runs, those that run any line of the file."""
        by_line = self._data.contexts_by_lineno(file)
        if line not in by_line:
            return []
        contexts = {context for context in by_line[line] if context}
        if not contexts:
            contexts = {context for some in by_line.values() for context in some if context}
        return sorted({context.rpartition("|")[0] for context in contexts})
