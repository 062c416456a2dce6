"""A look at a pipeline's first elements: what each operator does to them, and how long it takes."""

from __future__ import annotations

from pecan_ray.autoorder.facts import OpSample, SampleProfile, StretchSample
from pecan_ray.autoorder.order import sample_profile

__all__ = ["OpSample", "SampleProfile", "StretchSample", "sample_profile"]
