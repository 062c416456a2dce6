"""A state as Grain's iterators give it: bytes, which its checkpoint handlers and orbax's save beside a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pecan_ray.errors import StateError


class GrainState:
    """The part of `pecan_ray.Batches` that Grain's checkpoint handlers call."""

    def state_dict(self) -> dict[str, Any]:
        """Return where the run stands."""
        raise NotImplementedError

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken."""
        raise NotImplementedError

    def get_state(self) -> bytes:
        """Return what `state_dict` does as bytes of JSON, as Grain's iterators do."""
        return json.dumps(self.state_dict()).encode()

    def set_state(self, state: bytes | str) -> None:
        """Go on where `get_state` was called, as `load_state_dict` does; raises StateError for other bytes."""
        try:
            read = json.loads(state)
        except (TypeError, ValueError) as error:
            raise StateError(f"set_state needs what get_state has returned, but got {str(state)[:40]!r}.") from error
        self.load_state_dict(read)
