"""Which ops must not change places, found from the columns that they read, write, create and drop.

Pecan exchanges ops that work on the same image or sound although the result then differs: its point is that
augmentations may (§3.2, relaxed commutativity).  So "both write column `image`" cannot forbid an exchange here, as
it would in a compiler.  What is forbidden is what would make the pipeline fail, or make a column mean something
else.  Let a run before b in the user's order, both in one section.

Hard rules (every mode but "off"):

1. **Creation.**  a *defines* a column (creates it, or writes it without reading it) that b reads, writes or
   drops: b stays behind a.
2. **Drop.**  b drops a column that a reads or writes, or a drops one that b defines anew: b stays behind a.
3. **Replacement.**  b defines a column that a reads or writes (a used the content from before): b stays behind a.

Rules of modes "strict" and "safe":

4. **Observation.**  One of them transforms a column in place (reads and writes it) that the other only reads, and
   the two transform no column in common: they stay.  The reader derives something from the column (a length, a
   mask, whether a filter keeps the element) that would describe another state of it.  Where both transform a
   common column, as padding and a masking that looks up the padded length do, they are two augmentations of one
   thing, and may be exchanged.
5. **Custom types.**  An op never moves behind a cast to a custom type (bfloat16) that it ran before: its time with
   that type was not measured, and is bad on most CPUs (Pecan, footnote 1).

Conversions between numbers and text or bytes, and changes of rank, need no rule: such ops are fixed, and nothing
crosses them.  An op of which no column is known is under no constraint.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pecan_ray.reorder.profile import ProfiledOp


class Constraint(NamedTuple):
    """Index `first` must stay before index `second`."""

    first: int
    second: int
    reason: str


def hard_constraints(ops: Sequence[ProfiledOp], section: Sequence[int]) -> Iterator[Constraint]:
    """Yield what the rules 1 to 3 forbid; pairs that follow from others by transitivity may be missing."""
    owners: dict[str, int] = {}
    users: dict[str, list[int]] = {}
    for index in section:
        op = ops[index]
        for column in sorted(op.reads | op.writes | op.creates | op.drops):
            owner = owners.get(column)
            remakes = column in op.defines or column in op.drops
            if owner is not None:
                yield Constraint(owner, index, _after_owner(ops[owner], op, column))
            if remakes:
                for user in users.get(column, ()):
                    yield Constraint(user, index, _before_end(ops[user], op, column))
                owners[column] = index
                users[column] = []
            else:
                users.setdefault(column, []).append(index)


def _after_owner(owner: ProfiledOp, user: ProfiledOp, column: str) -> str:
    if column in owner.defines:
        return f"{owner.name!r} creates column {column!r}, which {user.name!r} uses"
    return f"{owner.name!r} drops column {column!r}, which {user.name!r} makes anew"


def _before_end(user: ProfiledOp, owner: ProfiledOp, column: str) -> str:
    verb = "drops" if column in owner.drops else "replaces"
    return f"{user.name!r} uses column {column!r}, which {owner.name!r} {verb}"


def observation_constraints(ops: Sequence[ProfiledOp], section: Sequence[int]) -> Iterator[Constraint]:
    """Yield what rule 4 forbids."""
    readers: dict[str, list[int]] = {}
    changers: dict[str, list[int]] = {}
    for index in section:
        op = ops[index]
        for column in sorted(op.reads - op.writes - op.creates - op.drops):
            for other in changers.get(column, ()):
                if not ops[other].transforms & op.transforms:
                    yield Constraint(other, index, _observes(op, ops[other], column))
            readers.setdefault(column, []).append(index)
        for column in sorted(op.transforms):
            for other in readers.get(column, ()):
                if not ops[other].transforms & op.transforms:
                    yield Constraint(other, index, _observes(ops[other], op, column))
            changers.setdefault(column, []).append(index)


def _observes(reader: ProfiledOp, changer: ProfiledOp, column: str) -> str:
    return f"{reader.name!r} derives from column {column!r}, which {changer.name!r} transforms"


def custom_type_constraints(ops: Sequence[ProfiledOp], section: Sequence[int]) -> Iterator[Constraint]:
    """Yield what rule 5 forbids."""
    earlier: list[int] = []
    for index in section:
        if ops[index].custom_dtype_cast:
            for other in earlier:
                yield Constraint(
                    other, index, f"{ops[index].name!r} casts to a type with which {ops[other].name!r} would be slow"
                )
        earlier.append(index)
