"""Nodes by the names of their hosts."""

from __future__ import annotations

import re

from pecan_ray.errors import StaleJobError
from pecan_ray.job.host_names import in_host_names, names_of_nodes
from pecan_ray.runtime import host_names

A, B, C = ("a" * 56, "b" * 56, "0123456789abcdef" * 3 + "01234567")


def test_further_nodes_of_a_host_have_a_number_whatever_order_they_are_listed_in() -> None:
    hosts = [(B, "gpu-1"), (A, "gpu-1"), (C, "cpu-7")]
    assert names_of_nodes(hosts) == names_of_nodes(reversed(hosts)) == {A: "gpu-1", B: "gpu-1 (2)", C: "cpu-7"}


def test_ids_of_nodes_are_replaced_wherever_they_stand_and_nothing_else_is() -> None:
    name = {A: "gpu-1", B: "gpu-2"}.__getitem__
    checksum = "c" * 64
    said = in_host_names(f"no worker is started on node {A}, {B}: {checksum}", name)
    assert said == f"no worker is started on node gpu-1, gpu-2: {checksum}"


def test_an_error_keeps_its_kind_and_its_fields() -> None:
    host_names._names.update({A: "gpu-1"})
    error = host_names.named_error(StaleJobError(f"rank 1 on node {A}", patience_s=7.0))
    assert type(error) is StaleJobError and error.message == "rank 1 on node gpu-1" and error.patience_s == 7.0
    other = ValueError(A)
    assert host_names.named_error(other) is other, "an error of the user is the user's"
    assert not re.search("a{56}", str(error))
