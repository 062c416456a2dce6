"""Exceptions: the tree is as drawn, and each is pickled whole."""

from __future__ import annotations

import copy
import pickle

import cloudpickle
import pytest

from pecan_ray import errors
from pecan_ray.errors import PecanError

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, PecanError) and kind.__module__ == errors.__name__
]
FIELDS = {"op": "resize", "file": "a.jpg", "element": 7, "column": None, "shape": (1, 2)}


def drawn_tree() -> dict[str, str | None]:
    """Read the parent of each class from the drawing in the module's docstring."""
    parents: dict[str, str | None] = {}
    line_of_descent: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        stem = line[4:]
        word = stem.lstrip("│├└─ ").split(" ")[0]
        if not line.startswith("    ") or not word.endswith("Error"):
            continue
        depth = (len(stem) - len(stem.lstrip("│├└─ "))) // 4
        line_of_descent[depth:] = [word]
        parents[word] = line_of_descent[depth - 1] if depth else None
    return parents


def test_the_tree_is_as_drawn() -> None:
    real = {
        kind.__name__: next((base.__name__ for base in kind.__bases__ if issubclass(base, PecanError)), None)
        for kind in KINDS
    }
    assert drawn_tree() == real and len(real) >= 16
    ours = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert ours == set(KINDS)


def test_a_copy_of_any_kind_has_message_and_fields() -> None:
    for kind in KINDS:
        error = kind("resize failed: 10 %", **FIELDS)
        pickled = [through.loads(through.dumps(error)) for through in (pickle, cloudpickle)]
        for copied in (*pickled, copy.copy(error), copy.deepcopy(error)):
            assert type(copied) is kind and copied.fields == FIELDS
            assert str(copied) == copied.message == "resize failed: 10 %"
            assert (copied.op, copied.element, copied.shape) == ("resize", 7, (1, 2))


def test_a_field_that_is_not_there_is_no_attribute_and_errors_are_also_what_python_calls_them() -> None:
    with pytest.raises(AttributeError, match="PecanError has no attribute 'file'"):
        _ = PecanError("text", op="resize").file
    assert issubclass(errors.PlanError, ValueError)
    assert issubclass(errors.SourceNotFoundError, FileNotFoundError)
    assert issubclass(errors.SourcePermissionError, PermissionError)
    assert issubclass(errors.MissingExtraError, ImportError)


def test_a_text_that_holds_data_is_told_by_its_beginning_and_its_end() -> None:
    for length in (errors.MOST_TEXT, 10**6):
        said = errors.describe_error(ValueError(f"cannot decode {'x' * (length - 20)} at 7"))
        assert len(said) <= errors.MOST_TEXT + len("ValueError: ")
        assert said.startswith("ValueError: cannot decode x") and said.endswith("at 7")
        message = str(PecanError("cannot " + "x" * length + " at 7"))
        assert len(message) <= errors.MOST_MESSAGE and message.endswith("x at 7")
        assert str(pickle.loads(pickle.dumps(PecanError(message)))) == message


SHOWN = {
    "https://me:p:w@host/a?b=c&d=e: no": "https://host/a?...: no",
    "'https://token@host/x' and postgres://u:p@h/db?x=y, z": "'https://host/x' and postgres://h/db?..., z",
    'Invalid bucket name "AKIA:secret@b"': 'Invalid bucket name "b"',
    **{one: one for one in ("s3://b/x?.txt", "abfs://c@account.dfs/x", "x[1:n]@y ? a=b", "a@b.c")},
}


def test_messages_show_no_user_information_and_no_query() -> None:
    for text, shown in SHOWN.items():
        assert str(PecanError(text)) == PecanError(text).message == shown
