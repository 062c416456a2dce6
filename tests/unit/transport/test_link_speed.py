"""The speed of a link, by the time that batches took."""

from __future__ import annotations

import pytest

from pecan_ray.transport.link_speed import ENOUGH_BYTES, SMALLEST_BYTES, LinkSpeed


def test_large_lots_tell_once_there_are_enough_of_them() -> None:
    speed = LinkSpeed()
    speed.add(SMALLEST_BYTES - 1, 100.0)
    speed.add(ENOUGH_BYTES - 1, 0.5)
    assert speed.bytes_per_s is None
    speed.add(ENOUGH_BYTES + 1, 0.5)
    assert speed.bytes_per_s == pytest.approx(2 * ENOUGH_BYTES)
