"""What tests of transports share."""

from __future__ import annotations

import pytest

from pecan_ray.transport import flight_client


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a client try again at once."""
    monkeypatch.setattr(flight_client, "PAUSE_S", 0.001)
