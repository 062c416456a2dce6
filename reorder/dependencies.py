"""Which ops must not change places, found from the columns that they read, write, create and drop.

Pecan exchanges ops that work on the same image or sound although the result then differs: its point is that
augmentations may (§3.2, relaxed commutativity).  So "both write column `image`" cannot forbid an exchange here, as
it would in a compiler.  What is forbidden is what would make the pipeline fail, or make a column mean something
else.  Let a run before b in the user's order, both in one section.

1. **Creation.**  a *defines* a column (creates it, or writes it without reading it) that b reads, writes or
   drops: b stays behind a.
2. **Drop.**  b drops a column that a reads or writes, or a drops one that b defines anew: b stays behind a.
3. **Replacement.**  b defines a column that a reads or writes (a used the content from before): b stays behind a.

Conversions between numbers and text or bytes, and changes of rank, need no rule: such ops are fixed, and nothing
crosses them.  An op of which no column is known is under no constraint.  What else modes "strict" and "safe" do not
exchange is in `never`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from pecan_ray.reorder.profile import ProfiledOp

Constraint: TypeAlias = tuple[int, int]
"""Indices of ops: the first must stay before the second."""


def constraints(ops: Sequence[ProfiledOp], section: Sequence[int]) -> Iterator[Constraint]:
    """Yield what the rules forbid; pairs that follow from others by transitivity may be missing."""
    owners: dict[str, int] = {}
    users: dict[str, list[int]] = {}
    for index in section:
        op = ops[index]
        for column in op.reads | op.writes | op.creates | op.drops:
            if column in owners:
                yield owners[column], index
            if column in op.defines or column in op.drops:
                yield from ((user, index) for user in users.pop(column, ()))
                owners[column] = index
            else:
                users.setdefault(column, []).append(index)
