"""What tests of transports share."""

from __future__ import annotations

import pytest

from pecan_ray.transport import flight_client


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_client, "PAUSE_S", 0.001)
