"""Events and instructions as JSON, and back: what a journal (`pecan_ray.job.journal`) holds, and other frozen values.

Made from the types' own annotations, so that a new event needs nothing here.  What was a mapping comes back as a dict,
and what could be iterated as a tuple.  Values of no certain type (what a source keeps in a split, what names an
element) are written as they are where JSON has them, else pickled; so are exceptions, beside their type and message.
"""

from __future__ import annotations

import base64
import dataclasses
import pickle
import types
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, Union, cast, get_args, get_origin, get_type_hints

from pecan_ray.errors import JournalError, PecanError
from pecan_ray.job.events import Event
from pecan_ray.job.instructions import Instruction
from pecan_ray.sampling.spans import PackedSpans

FORMAT_VERSION = 5
"""Grows whenever what was written before cannot be read as it is."""

JobMessage: TypeAlias = Event | Instruction
Json: TypeAlias = Any
"""What `json` reads and writes."""
MESSAGES: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(JobMessage)}
"""Everything that can be written, by name."""
ATOMS = (bool, int, str, type(None))


def encode(message: JobMessage) -> dict[str, Json]:
    """Return an event or instruction as a value that JSON has."""
    name = type(message).__name__
    if MESSAGES.get(name) is not type(message):
        raise JournalError(f"{name} is no event and no instruction: it cannot be written to a journal.")
    return {"version": FORMAT_VERSION, "type": name, "fields": json_form(type(message)).encode(message)}


def decode(written: Mapping[str, Json]) -> JobMessage:
    """Return the event or instruction that was written; raises JournalError where it cannot be read."""
    version, name = written.get("version"), written.get("type")
    if version != FORMAT_VERSION:
        raise JournalError(
            f"a journal of format {version!r} cannot be read: this is format {FORMAT_VERSION}. Read it with the "
            "version of pecan_ray that wrote it.",
            version=version,
        )
    kind = MESSAGES.get(name) if isinstance(name, str) else None
    if kind is None:
        raise JournalError(
            f"a journal names {name!r}, which is no event and no instruction of this version.", type=name
        )
    try:
        return cast(JobMessage, json_form(kind).decode(written["fields"]))
    except JournalError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise JournalError(f"a {name} in a journal is damaged: {error!r}.", type=name) from error


class JsonForm(NamedTuple):
    """How values of one type are written and read."""

    encode: Callable[[Any], Json]
    decode: Callable[[Json], Any]


_form_by_key: dict[Any, JsonForm] = {}
"""Those that were made."""


def json_form(hint: Any) -> JsonForm:
    """Return the form of an annotation."""
    # Made once: to evaluate the annotations of a type takes many times as long as to write a value.
    form = _form_by_key.get(hint)
    if form is None:
        form = _form_by_key[hint] = _form_of(hint)
    return form


def _form_of(hint: Any) -> JsonForm:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    if dataclasses.is_dataclass(hint) or hasattr(hint, "_fields"):
        return _dataclass_form(cast(type[Any], hint))
    if origin in (Union, types.UnionType):
        return _union_form(arguments)
    if origin is Literal:
        return _literal_form(arguments)
    if isinstance(origin, type) and issubclass(origin, Iterable):
        return _collection_form(origin, arguments)
    if isinstance(hint, type) and issubclass(hint, BaseException):
        return JsonForm(_encode_error, _decode_error)
    raise JournalError(f"values of type {hint} cannot be written to a journal.")


def _collection_form(kind: type[Any], arguments: tuple[Any, ...]) -> JsonForm:
    if kind is tuple:
        return _tuple_form(arguments)
    if issubclass(kind, Mapping):
        return _mapping_form(json_form(arguments[0]), json_form(arguments[1]))
    if kind is not frozenset:
        return _tuple_form((arguments[0], ...))
    every = json_form(arguments[0])
    # Sorted, so that equal values make equal files.
    return JsonForm(
        lambda value: [every.encode(one) for one in sorted(value)], lambda made: frozenset(map(every.decode, made))
    )


def _dataclass_form(kind: type[Any]) -> JsonForm:
    hints = get_type_hints(kind)
    names = getattr(kind, "_fields", None) or [field.name for field in dataclasses.fields(kind)]
    fields = {name: json_form(hints[name]) for name in names}

    def encode_fields(value: Any) -> Json:
        return {name: form.encode(getattr(value, name)) for name, form in fields.items()}

    def decode_fields(written: Json) -> Any:
        # A field of another version is a KeyError here, which `decode` reports; one that was not
        # written has its default.
        return kind(**{name: fields[name].decode(value) for name, value in written.items()})

    return JsonForm(encode_fields, decode_fields)


def _union_form(arguments: tuple[Any, ...]) -> JsonForm:
    classes: dict[str, type] = {}
    lists: list[JsonForm] = []
    words: list[JsonForm] = []
    for hint in arguments:
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            classes[hint.__name__] = hint
        elif get_origin(hint) is tuple:
            lists.append(json_form(hint))
        elif hint is not type(None):
            words.append(json_form(hint))
    if len(lists) > 1 or len(words) > 1:
        raise JournalError(f"values of {' | '.join(map(str, arguments))} cannot be told apart in a journal.")
    members = _Members(classes, lists, words)
    return JsonForm(members.encode, members.decode)


class _Members(NamedTuple):
    """Members of a union, told apart by what JSON has for them: null, an object with its type, a list, or a word."""

    types: Mapping[str, type[Any]]
    lists: Sequence[JsonForm]
    plain: Sequence[JsonForm]
    """Of both there is one, or none."""

    def encode(self, value: Any) -> Json:
        if value is None:
            return None
        name = type(value).__name__
        if name in self.types:
            return {"type": name, "fields": json_form(self.types[name]).encode(value)}
        return (self.lists if isinstance(value, tuple) else self.plain)[0].encode(value)

    def decode(self, written: Json) -> Any:
        if written is None:
            return None
        if self.types and isinstance(written, dict):
            return json_form(self.types[written["type"]]).decode(written["fields"])
        return (self.lists if self.lists and isinstance(written, list) else self.plain)[0].decode(written)


def _literal_form(choices: tuple[Any, ...]) -> JsonForm:
    def checked(value: Any) -> Any:
        if value not in choices:
            raise ValueError(f"{value!r} is none of {choices}")
        return value

    return JsonForm(checked, checked)


def _tuple_form(arguments: tuple[Any, ...]) -> JsonForm:
    if len(arguments) == 2 and arguments[1] is ...:
        every = json_form(arguments[0])

        def encode_each(value: Any) -> Json:
            # What a batch of shuffled rows holds, at once: in a loop it took most of the controller's time.
            return value.bounds.tolist() if type(value) is PackedSpans else [every.encode(one) for one in value]

        return JsonForm(encode_each, lambda written: tuple(map(every.decode, written)))
    forms = [json_form(hint) for hint in arguments]
    return JsonForm(
        lambda value: [form.encode(one) for form, one in zip(forms, value, strict=True)],
        lambda written: tuple(form.decode(one) for form, one in zip(forms, written, strict=True)),
    )


def _mapping_form(key: JsonForm, value: JsonForm) -> JsonForm:
    return JsonForm(
        lambda mapping: [[key.encode(name), value.encode(one)] for name, one in mapping.items()],
        lambda written: {key.decode(name): value.decode(one) for name, one in written},
    )


def _encode_float(value: float) -> Json:
    number = float(value)
    return number if number - number == 0 else str(number)  # JSON has no infinity, and no "not a number"


def _pickled(value: Any) -> str:
    return base64.b64encode(pickle.dumps(value)).decode()


def _encode_any(value: Any) -> Json:
    # Not isinstance: an instance of a subclass (a text of NumPy, an enumeration) would come back as
    # something else.
    if type(value) in ATOMS:
        return value
    if type(value) is tuple:
        return {"tuple": [_encode_any(one) for one in value]}
    try:
        return {"pickle": _pickled(value)}
    except Exception as error:  # pickling runs anybody's code
        raise JournalError(f"{value!r} cannot be written to a journal: {error}") from error


def _decode_any(written: Json) -> Any:
    if not isinstance(written, dict):
        return written
    if "tuple" in written:
        return tuple(_decode_any(one) for one in written["tuple"])
    try:
        return pickle.loads(base64.b64decode(written["pickle"]))
    except Exception as error:  # so does unpickling
        raise JournalError(f"a pickled value in a journal cannot be read: {error!r}.") from error


def _encode_error(error: BaseException) -> Json:
    written = {"type": type(error).__name__, "message": str(error)}
    try:
        # Some exceptions can be pickled and not unpickled. That must show now, and not at the replay.
        pickle.loads(pickle.dumps(error))
        return {**written, "pickle": _pickled(error)}
    except Exception:  # an exception of a user's that does not survive this is told by its type and message
        return {**written, "pickle": None}


def _decode_error(written: Json) -> BaseException:
    told = PecanError(f"{written['type']}: {written['message']}")
    if written["pickle"] is None:
        return told
    try:
        error = pickle.loads(base64.b64decode(written["pickle"]))
    except Exception:  # its class may not be here
        return told
    return error if isinstance(error, BaseException) else told


_SIMPLE: dict[Any, JsonForm] = {
    bool: JsonForm(bool, bool),
    int: JsonForm(int, int),
    str: JsonForm(str, str),
    float: JsonForm(_encode_float, float),
    bytes: JsonForm(lambda data: base64.b64encode(data).decode(), base64.b64decode),
    Any: JsonForm(_encode_any, _decode_any),
    Hashable: JsonForm(_encode_any, _decode_any),
}
