"""What the service knows of groups: who runs where, and who reads; as a state that its journal brings about again."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class GroupRecord:
    """What is known of a group of sharing readers."""

    name: str
    pipeline: str
    fingerprint: str
    node: str
    readers: tuple[str, ...] = ()


class ShareDirectory:
    """The groups that live, as far as they have told."""

    def __init__(self) -> None:
        self.groups: dict[str, GroupRecord] = {}

    def update(self, record: GroupRecord) -> str:
        """Take what a group tells; return a line for the journal, empty if it is known."""
        if self.groups.get(record.name) == record:
            return ""
        self.groups[record.name] = record
        return json.dumps({"group": asdict(record)})

    def remove(self, name: str) -> str:
        """Forget a group; return a line for the journal, empty if it is not known."""
        return "" if self.groups.pop(name, None) is None else json.dumps({"gone": name})

    def replay(self, lines: Iterable[str]) -> int:
        """Take over what a journal tells; return how many lines could not be read, which are left out."""
        unread = 0
        for line in lines:
            try:
                told = json.loads(line)
                if "gone" in told:
                    self.remove(told["gone"])
                else:
                    group = told["group"]
                    # JSON has lists, and records are compared with those that have tuples.
                    self.update(GroupRecord(**{**group, "readers": tuple(group["readers"])}))
            except (ValueError, TypeError, KeyError):  # the last one may have been written in part
                unread += 1
        return unread

    def written(self) -> str:
        """Return the shortest journal that brings this about."""
        return "".join(f"{json.dumps({'group': asdict(record)})}\n" for record in self.groups.values())
