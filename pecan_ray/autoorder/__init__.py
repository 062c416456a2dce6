"""A look at a pipeline's first elements: what each operator does to them, and how long it takes."""

from __future__ import annotations

from pecan_ray.autoorder.op_samples import OpSample, OpSequenceSample, SampleProfile
from pecan_ray.autoorder.order import sample_profile

__all__ = ["OpSample", "OpSequenceSample", "SampleProfile", "sample_profile"]
