"""How many leases a worker asks for at a time."""

from __future__ import annotations

import pytest

from pecan_ray.runtime.leases import LOT_S, MOST_IN_LOT, lot_of


@pytest.mark.parametrize(
    ("lease_s", "lot"),
    [(None, 1), (30.0, 1), (LOT_S, 1), (LOT_S / 2, 2), (LOT_S / 10.5, 10), (1e-6, MOST_IN_LOT), (0.0, MOST_IN_LOT)],
)
def test_short_leases_come_in_lots(lease_s: float | None, lot: int) -> None:
    assert lot_of(lease_s) == lot
