"""What is said where Ray does not let a program in."""

from __future__ import annotations

import ray

from pecan_ray.runtime.cluster import asks_for_token


def test_a_cluster_that_asks_for_its_token_is_told_from_one_that_is_not_there() -> None:
    refused = ConnectionError("Failed to connect to Ray cluster")
    refused.__cause__ = RuntimeError("RPC error: InvalidAuthToken: Authentication token is missing or incorrect")
    assert asks_for_token(refused)
    assert asks_for_token(ray.exceptions.AuthenticationError("no token"))
    assert not asks_for_token(ConnectionRefusedError(111, "Connection refused"))
