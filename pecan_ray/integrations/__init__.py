"""Pipelines inside other libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pecan_ray.lazy import lazy_names

if TYPE_CHECKING:
    from pecan_ray.integrations.ray_train import PecanDataConfig, PipelineShard

__all__ = ["PecanDataConfig", "PipelineShard"]

__getattr__ = lazy_names(
    __name__,
    {
        "PecanDataConfig": "pecan_ray.integrations.ray_train",
        "PipelineShard": "pecan_ray.integrations.ray_train",
    },
)
