"""Trying again, on a clock that only the pauses move."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field

import pytest

from pecan_ray.errors import StorageOutageError
from pecan_ray.storage import retry as module
from pecan_ray.storage.retry import (
    Backoff,
    Retrying,
    RetryRegistry,
    is_cert_error,
    patience_at_most,
    retry,
    set_patience,
)


@dataclass
class Store:
    """Fails until a time, on a clock that sleeping moves on."""

    up_at: float = float("inf")
    now: float = 1000.0
    takes_s: float = 0.0
    error: Callable[[], Exception] = TimeoutError
    pauses: list[float] = field(default_factory=list)
    message: list[tuple[float, str]] = field(default_factory=list)

    def call(self) -> str:
        self.now += self.takes_s
        if self.now < self.up_at:
            raise self.error()
        return "data"

    def sleep(self, pause_s: float) -> None:
        self.pauses.append(pause_s)
        self.now += pause_s

    def retry(self, backoff: Backoff | None = None) -> str:
        return retry(
            self.call,
            passes=lambda error: isinstance(error, OSError),
            path="s3://data/a",
            backoff=backoff,
            clock=lambda: self.now,
            sleep=self.sleep,
            registry=RetryRegistry(lambda text: self.message.append((self.now, text))),
        )


def test_a_shorter_outage_is_waited_out_a_longer_one_is_told_and_what_lasts_is_raised_at_once() -> None:
    for outage_s in (0.0, 2.0, 60.0, 299.0):
        store = Store(up_at=1000.0 + outage_s)
        assert store.retry() == "data"
        assert store.now - store.up_at <= Backoff().longest_s
        assert all(pause <= Backoff().longest_s for pause in store.pauses)
    store, said = Store(), r"s3://data/a could not be read: .* within 60 s.*TimeoutError"
    with pytest.raises(StorageOutageError, match=said) as caught:
        store.retry(Backoff(patience_s=60.0))
    assert store.now == pytest.approx(1060.0)
    assert (caught.value.path, caught.value.tries) == ("s3://data/a", len(store.pauses) + 1)
    assert "storage_patience_s" in str(caught.value)
    store = Store(error=lambda: ValueError("lasting"))
    with pytest.raises(ValueError, match="lasting"):
        store.retry()
    assert store.pauses == []
    outer = ConnectionError("ssl")
    outer.__cause__ = ssl.SSLCertVerificationError("unknown issuer")
    assert is_cert_error(outer) and not is_cert_error(ConnectionError("reset"))


def test_it_is_told_within_five_seconds_and_again_each_minute_once_for_all_that_wait() -> None:
    store = Store(up_at=1000.0 + 150.0)
    store.retry()
    assert len(store.message) in (2, 3)
    at, text = store.message[0]
    assert at <= 1005.0
    assert text.startswith("s3://data/a cannot be read and is tried again, for 300 s at most")
    assert text.endswith("TimeoutError: ")
    quiet = Store(up_at=1002.0)
    quiet.retry(Backoff(longest_s=0.5))
    assert quiet.message == []
    said: list[str] = []
    registry = RetryRegistry(said.append)
    for number in range(100):
        registry.say(Retrying(f"s3://data/{number}", "Error: down", 0.0), now=6.0, next_try=7.0, patience_s=300.0)
    assert len(said) == 1


def test_the_patience_of_a_process_can_be_set_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module._patience, "seconds", module._patience.seconds)  # is put back
    set_patience(20.0)
    for bound_s, lasted_s in ((5.0, 5.0), (100.0, 20.0), (None, 20.0)):
        store = Store()
        with patience_at_most(bound_s) if bound_s else nullcontext(), pytest.raises(StorageOutageError):
            store.retry()
        assert store.now == pytest.approx(1000.0 + lasted_s)
