"""Every exception that pecan_ray raises on purpose.

    PecanError
    ├── PlanError                 the pipeline itself is wrong (found before any data moves)
    │   ├── ColumnError           a column that is asked for does not exist
    │   └── UnpicklablePlanError  a function holds something that cannot be sent to a worker
    ├── SourceError               the data cannot be found or read
    │   ├── SourceNotFoundError   missing file, bucket or key; a glob that matches nothing
    │   ├── SourcePermissionError not allowed to read it
    │   ├── StorageOutageError    the storage did not answer, for as long as Config(storage_patience_s=...) allows
    │   └── CorruptSourceError    found, but broken: truncated record, bad checksum
    │       └── SourceReplacedError   it is not the version that was listed any more
    ├── ElementError              one element could not be processed; names op, file and element
    │   ├── OpError               a user's function raised
    │   ├── OutputTypeError       a user's function returned something that is not an element
    │   ├── BatchShapeError       elements of one batch differ in columns, shape or dtype
    │   ├── OrderError            an element failed in an order of operators that AutoOrder chose, not in the user's
    │   └── CutError              an element cannot be sent before the last operators have run on it
    ├── ErrorBudgetError          too many bad elements were skipped or quarantined
    ├── CacheError                a folder of cached entries cannot be used
    ├── JournalError              what a job has written down cannot be read
    ├── StateError                a state that was saved cannot be gone on from: damaged, or of something else
    ├── ClusterError              Ray cannot be reached or cannot do what was asked
    │   ├── WorkerStartError      a worker process failed while it was being set up
    │   ├── RankTakenError        another process has this rank of the job
    │   └── StaleJobError         a job of this name is ending, whose trainers are gone
    └── MissingExtraError         an optional dependency is not installed

All of them cross process borders whole: pickling keeps the message and every field.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection
from typing import Any

MOST_LISTED = 20
"""Columns that a message lists: three lines of a terminal, and more than most tables have."""
MOST_TEXT = 4_000
"""Characters that are told of an exception's text: what is longer holds data, as f"cannot decode {data!r}" does."""
MOST_MESSAGE = 32_000
"""Characters of a message, which travels, is logged, and is kept for each bad element."""
_USER = re.compile(r"""(://|["'])[^\s/"':@]{0,200}:[^\s/"']{0,500}@""")
"""A user and a password; of `abfs://` and its like what stands before the @ alone names a container."""
_TOKEN = re.compile(r"""(https?://)[^\s/"':@]{1,500}@""")
_QUERY = re.compile(r"""\?[^\s="'?]{0,200}=[^\s"']*[^\s"':,.;)\]]""")
"""Of a signed URL it is the key; a `?` without a `=` behind it is of a pattern for names."""
# Characters before a query in which its URL is looked for: messages may be long.
LONGEST_URL = 2000


class PecanError(Exception):
    """Base of every exception of pecan_ray: catch it to catch all of them."""

    def __init__(self, message: str, **fields: Any) -> None:
        self.message = cut_text(strip_credentials(message), MOST_MESSAGE)
        super().__init__(self.message)
        self.fields = fields

    def __getattr__(self, name: str) -> Any:
        # Before `__init__` has run there are none, and to ask for them as an attribute would come back here.
        fields = self.__dict__.get("fields", {})
        if name in fields:
            return fields[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.fields)


def _rebuild(kind: type[PecanError], message: str, fields: dict[str, Any]) -> PecanError:
    return kind(message, **fields)


class PlanError(PecanError, ValueError):
    """The pipeline cannot run as written."""


class ColumnError(PlanError):
    """A column that is asked for does not exist; the message lists those that do."""


class UnpicklablePlanError(PlanError):
    """A function of the pipeline holds a value that cannot be sent to a worker."""


class SourceError(PecanError):
    """The data cannot be found or read."""


class SourceNotFoundError(SourceError, FileNotFoundError):
    """A file, bucket or key is missing, or a glob matches nothing."""


class SourcePermissionError(SourceError, PermissionError):
    """The storage refused access."""


class CorruptSourceError(SourceError):
    """The data was found but is broken: a truncated record or a bad checksum."""


class SourceReplacedError(CorruptSourceError):
    """A file or object was replaced since it was listed, or while it was being read."""


class StorageOutageError(SourceError):
    """The storage did not answer for as long as `Config(storage_patience_s=...)` allows: ends a job under every
    `on_error`, because nothing is known to be wrong with the data."""


class ElementError(PecanError):
    """One element could not be processed: fields `op`, `file` and `element` say which."""


class OpError(ElementError):
    """A user's function raised; the message carries its traceback."""


class OutputTypeError(ElementError):
    """A user's function returned something that is not an element."""


class BatchShapeError(ElementError):
    """Elements of one batch differ in columns, shape or dtype."""


class OrderError(ElementError):
    """An element failed in an order of operators that AutoOrder chose: the job goes back to the user's order."""


class CutError(ElementError):
    """An element cannot be sent before the last operators have run on it: workers run all of them from now on."""


class ErrorBudgetError(PecanError):
    """More elements were skipped or quarantined than the error budget allows."""


class StateError(PecanError):
    """A state that was saved cannot be gone on from: it is damaged, or of another pipeline, version or data."""


class JournalError(PecanError):
    """What a job has written down cannot be read: another version of the format, or damaged."""


class CacheError(PecanError):
    """A folder of cached entries cannot be used: not allowed, no room, or of another version of the format."""


class ClusterError(PecanError):
    """Ray cannot be reached, or cannot do what was asked."""


class WorkerStartError(ClusterError):
    """A worker process failed while it was being set up."""


class RankTakenError(ClusterError):
    """Another process has this rank of the job."""


class StaleJobError(ClusterError):
    """A job of this name is ending, whose trainers are gone: a new one can begin when it has."""


class MissingExtraError(PecanError, ImportError):
    """An optional dependency is not installed; the message names the extra to install."""


def strip_credentials(text: str) -> str:
    """Return a text whose URLs have no user information and no query, in which passwords and signatures are.

    >>> strip_credentials("https://me:pw@host/a.txt?sig=1: not found")
    'https://host/a.txt?...: not found'
    """
    if "@" in text:
        text = _TOKEN.sub(r"\1", _USER.sub(r"\1", text))
    return _QUERY.sub(_without_query, text) if "://" in text else text


def _without_query(found: re.Match[str]) -> str:
    """Return what stands for a query; one that is none of a URL stays."""
    before = found.string[max(0, found.start() - LONGEST_URL) : found.start()]
    return "?..." if "://" in re.split(r"""[\s"']""", before)[-1] else found[0]


def cut_text(text: str, most: int) -> str:
    """Return a text of at most so many characters: of a longer one the beginning and the end."""
    if len(text) <= most:
        return text
    half = most // 2 - 30  # which leaves room for the words between
    return f"{text[:half]} ... {len(text) - 2 * half:,} characters ... {text[-half:]}"


def describe_error(error: BaseException, most: int = MOST_TEXT) -> str:
    """Return an exception's type and text, also where its own ``__str__`` fails; of a long text so many characters."""
    try:
        text = str(error)
    except BaseException as second:  # it is the user's code too
        text = f"<its text is not known: __str__ raised {type(second).__name__}>"
    return f"{type(error).__name__}: {cut_text(text, most)}"


def to_str(value: Any) -> str:
    """Return the repr of a value, also where its own ``__repr__`` fails."""
    try:
        return repr(value)
    except BaseException as error:  # it is the user's code too
        if is_interrupt(error):
            raise
        return f"<a {type(value).__name__} whose __repr__ raised {type(error).__name__}>"


def join_names(names: Collection[Any], others: Collection[Any] = ()) -> str:
    """Return the names of columns for a message: in order, and of many those first that others do not have."""
    shown = sorted(map(to_str, names))
    if len(shown) > MOST_LISTED:
        mismatches = sorted(to_str(name) for name in names if name not in others)
        first = (mismatches or shown)[:MOST_LISTED]
        return f"[{', '.join(first)}, and {len(shown) - len(first):,} more]"
    return f"[{', '.join(shown)}]"


def is_interrupt(error: BaseException) -> bool:
    """Tell whether an exception is the user's Ctrl-C, which no function has raised."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()
