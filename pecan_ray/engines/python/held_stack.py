"""The stack of a function whose steps are followed: of each value what it holds that lives longer than a call."""

from __future__ import annotations

import dis

from pecan_ray.engines.python.long_lived import LongLived

CALLS = ("CALL", "CALL_KW", "CALL_FUNCTION", "CALL_METHOD", "CALL_FUNCTION_KW", "PRECALL")
"""Steps of Python that call something, of several versions."""
MAKES: tuple[str, ...] = (
    "BINARY_",
    "BUILD_",
    "CALL",
    "COMPARE_",
    "CONTAINS_",
    "CONVERT_",
    "FORMAT_",
    "IMPORT_",
    "INPLACE_",
    "IS_OP",
)
MAKES += ("MAKE_", "UNARY_", "YIELD_")
"""Beginnings of names of steps that put a value of their own on the stack."""
PRECALL = "PRECALL" in dis.opmap


def effect_of(step: dis.Instruction) -> int:
    """Return how many values a step of Python adds to the stack."""
    return dis.stack_effect(step.opcode, step.arg if step.opcode >= dis.HAVE_ARGUMENT else None, jump=False)


def is_in_place(step: dis.Instruction) -> bool:
    """Tell whether a step is an operator such as `+=`."""
    return step.opname.startswith("INPLACE_") or (step.opname == "BINARY_OP" and "=" in step.argrepr)


class HeldStack(list[LongLived | None]):
    """What lies on the stack; None for a value that holds nothing that lives longer."""

    def top(self, place: int = 1) -> LongLived | None:
        """Return the value at a place from the top."""
        return self[-place] if 0 < place <= len(self) else None

    def replace(self, step: dis.Instruction, result: LongLived | None = None) -> None:
        """Take away what a step takes, and put there what it makes."""
        effect = effect_of(step)
        if effect > 0:
            self += [None] * effect
        elif effect < 0:
            del self[effect:]
        makes = step.opname.startswith(MAKES) or result is not None
        if effect <= 0 and makes and self:
            self[-1] = result

    def rearrange(self, name: str, count: int) -> None:
        """Do a step that moves values, or puts one there again."""
        if name == "COPY":
            self.append(self.top(count))
        elif name == "SWAP" and count <= len(self):
            self[-count], self[-1] = self[-1], self[-count]
        elif name == "DUP_TOP":
            self.append(self.top())
        elif name == "DUP_TOP_TWO":
            self += [self.top(2), self.top()]
        elif name.startswith("ROT_"):
            several = {"ROT_TWO": 2, "ROT_THREE": 3, "ROT_FOUR": 4}.get(name, count)
            self[-several:] = [self.top(), *self[-several:-1]]

    def joined(self, other: HeldStack) -> HeldStack:
        """Return what may lie there where two ways come together."""
        if len(self) != len(other):
            return self
        return HeldStack(mine or its for mine, its in zip(self, other, strict=True))
