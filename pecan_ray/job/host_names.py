"""Nodes by the names of their hosts: in what people read no id stands."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable

_ID = re.compile(r"\b[0-9a-f]{56}\b")
"""The id of a node, as Ray writes it: 28 bytes in hexadecimal digits."""


def names_of_nodes(hosts: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return a name for each (id, host): the host's, with a number behind it for further nodes of one host."""
    names: dict[str, str] = {}
    seen: Counter[str] = Counter()
    # Sorted, so that each process that lists the same nodes gives them the same names.
    for node, host in sorted(hosts):
        seen[host] += 1
        names[node] = host if seen[host] == 1 else f"{host} ({seen[host]})"
    return names


def in_host_names(text: str, name: Callable[[str], str]) -> str:
    """Return a text with the name of each node in place of its id."""
    return _ID.sub(lambda found: name(found.group()), text)
