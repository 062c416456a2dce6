"""Pecan's Algorithm 2, to the letter.

For each section between fixed ops, in the user's order: a deflating op goes to the front of the prefix, a neutral
one to the end of the prefix, an inflating one to the end of the suffix; the section becomes prefix + suffix.  Since
deflating ops are *prepended*, two of them change places.  A deflating cast to a custom type (bfloat16) goes behind
the suffix, since CPUs compute slowly with such types (footnote 1).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from pecan_ray.reorder.profile import ProfiledOp


def algorithm2(ops: Sequence[ProfiledOp], section: Sequence[int], neutral_band: float = 0.0) -> list[int]:
    """Return the section's indices in Algorithm 2's order, in O(n)."""
    prefix: deque[int] = deque()
    suffix: list[int] = []
    end: list[int] = []
    for index in section:
        verdict = ops[index].verdict(neutral_band)
        if verdict == "inflates":
            suffix.append(index)
        elif verdict == "neutral":
            prefix.append(index)
        elif ops[index].custom_dtype_cast:
            end.append(index)
        else:
            prefix.appendleft(index)
    return [*prefix, *suffix, *end]
