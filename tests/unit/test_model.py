"""The model of the control plane's core, checked by Spin."""

from __future__ import annotations

import shutil

import pytest

from tests.model.__main__ import FAULTS, WITHOUT_FAULT, Check, run


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("spin") and shutil.which("gcc")), reason="needs Debian's packages spin and gcc")
@pytest.mark.parametrize("check", [*WITHOUT_FAULT, *FAULTS], ids=str)
def test_spin_finds_each_planted_fault_and_nothing_else(check: Check) -> None:
    errors, _ = run(check)
    assert bool(errors) == bool(check.fault)
