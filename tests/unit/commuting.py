"""What policies are told where every exchange leaves results as they are."""

from __future__ import annotations


def any_pair(pair: tuple[str, str]) -> bool:
    """Any two operators may be exchanged."""
    return True
