"""Nobody waits in silence: what is waited for longer than a few seconds is said once, and again when it changes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

SAY_AFTER_S = 5.0


class Waits:
    """What is being waited for, since when, and what of it was said."""

    def __init__(self, say_after_s: float = SAY_AFTER_S) -> None:
        self._say_after_s = say_after_s
        self._since: dict[Hashable, float] = {}
        self._said: dict[Hashable, tuple[str, str]] = {}
        """What was said, as it was given and as it was spelled out."""

    def __bool__(self) -> bool:
        return bool(self._since)

    def look(
        self, now: float, waits: Mapping[Hashable, str], began: Mapping[Hashable, float] | None = None
    ) -> list[str]:
        """Take what is waited for now, a text for each thing, and return what must be said.

        A text may contain `{seconds}`, which is filled in; it does not make another text of it.  `began` tells of
        things that had been waited for before they were met here, since when.
        """
        began = began or {}
        for gone in self._since.keys() - waits.keys():
            del self._since[gone]
            self._said.pop(gone, None)
        fresh = []
        for thing, text in waits.items():
            since = self._since.setdefault(thing, began.get(thing, now))
            if now - since >= self._say_after_s and self._said.get(thing, ("",))[0] != text:
                spelled = text.replace("{seconds}", f"{now - since:.0f} s")
                self._said[thing] = text, spelled
                fresh.append(spelled)
        return fresh

    @property
    def standing(self) -> tuple[str, ...]:
        """All that was said and still holds."""
        return tuple(spelled for _, spelled in self._said.values())

    @property
    def due(self) -> float | None:
        """The time at which the next thing must be said; None if nothing is waited for that was not said."""
        return min(
            (since + self._say_after_s for thing, since in self._since.items() if thing not in self._said), default=None
        )
