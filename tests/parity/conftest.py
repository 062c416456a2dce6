"""The table is run without Ray here; tests/ray runs it on workers."""

from __future__ import annotations

from tests.unit.conftest import no_ray, samples_here

__all__ = ["no_ray", "samples_here"]
