"""The places of a module at which one small change gives another program: comparisons, sums, conditions, calls."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Changes: TypeAlias = Iterator[ast.AST]
"""What a node may be replaced by."""

OTHER_COMPARISON: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OTHER_OPERATION: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}


@dataclass(frozen=True)
class Mutation:
    """One change to a module's text."""

    line: int
    """First line of what is replaced, from 1 on."""
    start: int
    """First character of the module's text that is replaced."""
    stop: int
    """One past the last."""
    before: str
    after: str

    def applied(self, text: str) -> str:
        """Return the module's text with the change in it."""
        return text[: self.start] + self.after + text[self.stop :]

    def __str__(self) -> str:
        return f"{self.before!r} -> {self.after!r}"


def mutations(text: str) -> list[Mutation]:
    """Return all changes that can be made to a module, in the order of its text."""
    starts = _line_starts(text)
    lines = text.splitlines(keepends=True)
    found: list[Mutation] = []
    for node in _code(ast.parse(text)):
        start = _place(node.lineno, node.col_offset, lines, starts)
        stop = _place(node.end_lineno or 0, node.end_col_offset or 0, lines, starts)
        before = text[start:stop]
        for other in _changes(node):
            after = ast.unparse(ast.fix_missing_locations(other))
            after = f"({after})" if isinstance(other, ast.expr) and not isinstance(other, ast.Constant) else after
            found.append(Mutation(node.lineno, start, stop, before, after))
    return sorted(found, key=lambda one: (one.start, one.stop, one.after))


def drawn(by_file: Mapping[str, Sequence[Mutation]], count: int, seed: int) -> list[tuple[str, Mutation]]:
    """Draw mutations of several files, each of all with the same chance."""
    everything = [(file, one) for file in sorted(by_file) for one in by_file[file]]
    return random.Random(seed).sample(everything, min(count, len(everything)))


def _line_starts(text: str) -> list[int]:
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def _place(line: int, utf8_column: int, lines: Sequence[str], starts: Sequence[int]) -> int:
    """Return the character at a position that counts bytes."""
    return starts[line - 1] + len(lines[line - 1].encode()[:utf8_column].decode())


def _code(tree: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """Yield the nodes that do something: no annotation, no text, nothing for type checkers alone."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if not isinstance(node, ast.AST) or isinstance(node, (ast.JoinedStr, ast.Raise)) or _for_types(node):
                continue
            if isinstance(node, (ast.expr, ast.stmt)):
                yield node
            yield from _code(node)


def _for_types(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    return isinstance(node, ast.AnnAssign) and "TypeAlias" in ast.unparse(node.annotation)


def _changes(node: ast.AST) -> Changes:
    yield from _of_operators(node)
    yield from _of_constants(node)
    yield from _of_statements(node)


def _of_operators(node: ast.AST) -> Changes:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield ast.Compare(node.left, [OTHER_COMPARISON[type(node.ops[0])]()], node.comparators)
    elif isinstance(node, ast.BinOp) and type(node.op) in OTHER_OPERATION and not _is_text(node):
        yield ast.BinOp(node.left, OTHER_OPERATION[type(node.op)](), node.right)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.IfExp):
        yield node.body
        yield node.orelse


def _is_text(node: ast.BinOp) -> bool:
    sides = (node.left, node.right)
    return any(isinstance(one, (ast.JoinedStr, ast.List, ast.Tuple)) or _is_string(one) for one in sides)


def _is_string(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))


def _of_constants(node: ast.AST) -> Changes:
    if not isinstance(node, ast.Constant):
        return
    if isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node.value, (int, float)):
        yield ast.Constant(node.value + 1)


def _of_statements(node: ast.AST) -> Changes:
    if isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Await)):
        yield ast.Pass()
    elif isinstance(node, ast.Break):
        yield ast.Continue()
    elif isinstance(node, ast.Continue):
        yield ast.Break()


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
