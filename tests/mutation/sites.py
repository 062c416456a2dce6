"""The places of a module at which one small change gives another program: comparisons, sums, conditions, calls.

`assert` and `zip(strict=...)` are not changed, because they check what the program makes sure of, so no user observes
them; neither are texts, and the errors that `raise` makes.  `return False` becomes `return True`, and not a return of
None, which counts as False, as an empty text does.  Measured times are hardly ever equal, so of their comparisons `<`
becomes `>=`, and not `<=`.  A number becomes twice as large, and larger by 1 at least, because a limit that is larger
by one is as good a limit: so comparisons with a constant that has a name are turned round as well.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

PAIRS = [(ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)]
OTHER_COMPARISON: dict[type[ast.AST], type[ast.cmpop]] = {**dict(PAIRS), **{other: one for one, other in PAIRS}}
TURNED_ROUND: dict[type[ast.AST], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
}
OF_TIME = re.compile(r"_s\b|_S\b|\bnow\b")
"""Names of seconds, and of the time."""
OTHER_OPERATION: dict[type[ast.AST], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}
NEVER_CHANGED = (ast.JoinedStr, ast.Raise, ast.Assert)
NOT_RUN = ("annotation", "returns", "decorator_list", "type_params")


@dataclass(frozen=True)
class Mutation:
    """One change to a module's text."""

    line: int
    """First line of what is replaced, from 1 on."""
    statement: int
    """First line of the statement around it: a jump, or a number inside, need not have a line that is run."""
    start: int
    """First byte of the module's text that is replaced."""
    stop: int
    before: str
    after: str

    def applied(self, text: str) -> str:
        """Return the module's text with the change in it."""
        data = text.encode()
        return (data[: self.start] + self.after.encode() + data[self.stop :]).decode()

    def __str__(self) -> str:
        return f"{self.before!r} -> {self.after!r}"


def mutations(text: str) -> list[Mutation]:
    """Return all changes that can be made to a module, in the order of its text."""
    data, starts = text.encode(), [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: list[Mutation] = []
    tree = ast.parse(text)
    statements = _statements(tree)
    for node in _code(tree):
        start = starts[node.lineno - 1] + node.col_offset
        stop = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        for other in (*_of_operators(node), *_of_constants(node), *_of_statements(node)):
            after = ast.unparse(ast.fix_missing_locations(other))
            after = f"({after})" if isinstance(other, ast.expr) and not isinstance(other, ast.Constant) else after
            found.append(Mutation(node.lineno, statements[node], start, stop, data[start:stop].decode(), after))
    return sorted(found, key=lambda one: (one.start, one.stop, one.after))


def drawn(by_file: Mapping[str, Sequence[Mutation]], count: int, seed: int) -> list[tuple[str, Mutation]]:
    """Draw mutations of several files, each of all with the same chance."""
    everything = [(file, one) for file in sorted(by_file) for one in by_file[file]]
    return random.Random(seed).sample(everything, min(count, len(everything)))


def _code(tree: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """Yield the nodes that do something: no annotation, no text, nothing for type checkers alone."""
    for name, value in ast.iter_fields(tree):
        for node in value if isinstance(value, list) else [value]:
            if name in NOT_RUN or isinstance(node, NEVER_CHANGED) or _for_types(node) or _is_check(node):
                continue
            if isinstance(node, (ast.expr, ast.stmt)):
                yield node
            if isinstance(node, ast.AST):
                yield from _code(node)


def _statements(tree: ast.Module) -> dict[ast.AST, int]:
    """Return the first line of the statement that each node is in; of a jump, of the one around it."""
    found: dict[ast.AST, int] = {}
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            is_jump = isinstance(child, (ast.Break, ast.Continue))
            own = child.lineno if isinstance(child, ast.stmt) and not is_jump else None
            found[child] = found.get(node, 1) if own is None else own
    return found


def _for_types(node: object) -> bool:
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    return isinstance(node, ast.AnnAssign) and "TypeAlias" in ast.unparse(node.annotation)


def _is_check(node: object) -> bool:
    return isinstance(node, ast.keyword) and node.arg == "strict"


def _of_operators(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        other = OTHER_COMPARISON[type(node.ops[0])]
        if OF_TIME.search(ast.unparse(node)) or any(map(_is_limit, (node.left, *node.comparators))):
            other = TURNED_ROUND.get(type(node.ops[0]), other)
        yield ast.Compare(node.left, [other()], node.comparators)
    elif isinstance(node, ast.BinOp) and type(node.op) in OTHER_OPERATION and not _is_text(node):
        yield ast.BinOp(node.left, OTHER_OPERATION[type(node.op)](), node.right)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.IfExp):
        yield from (node.body, node.orelse)


def _is_limit(side: ast.expr) -> bool:
    """Return whether a side of a comparison is a constant with a name, or is reckoned from one."""
    if isinstance(side, ast.BinOp) and isinstance(side.op, (ast.Mult, ast.Add, ast.Sub)):
        return _is_limit(side.left) or _is_limit(side.right)
    return isinstance(side, ast.Name) and side.id.isupper()


def _is_text(node: ast.BinOp) -> bool:
    sides = (node.left, node.right)
    several = any(isinstance(one, (ast.JoinedStr, ast.List, ast.Tuple)) for one in sides)
    return several or any(isinstance(one, ast.Constant) and isinstance(one.value, (str, bytes)) for one in sides)


def _of_constants(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        yield ast.Constant(node.value + max(1, node.value))


def _of_statements(node: ast.AST) -> Iterator[ast.AST]:
    if (
        isinstance(node, ast.Return)
        and node.value is not None
        and ast.unparse(node.value) not in ("None", "False", "''")
    ):
        yield ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Await)):
        yield ast.Pass()
    elif isinstance(node, (ast.Break, ast.Continue)):
        yield ast.Continue() if isinstance(node, ast.Break) else ast.Break()
