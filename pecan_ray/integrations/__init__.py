"""Pipelines inside other libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pecan_ray.lazy import lazy_names

if TYPE_CHECKING:
    from pecan_ray.integrations.keras_state import InputBackup
    from pecan_ray.integrations.lightning_data import PecanDataModule
    from pecan_ray.integrations.ray_train import PecanDataConfig, PipelineShard
    from pecan_ray.integrations.transformers_trainer import PecanTrainer, PipelinesInTrainer

__all__ = ["InputBackup", "PecanDataConfig", "PecanDataModule", "PecanTrainer", "PipelineShard", "PipelinesInTrainer"]

__getattr__ = lazy_names(
    __name__,
    {
        "InputBackup": "pecan_ray.integrations.keras_state",
        "PecanDataConfig": "pecan_ray.integrations.ray_train",
        "PecanDataModule": "pecan_ray.integrations.lightning_data",
        "PecanTrainer": "pecan_ray.integrations.transformers_trainer",
        "PipelineShard": "pecan_ray.integrations.ray_train",
        "PipelinesInTrainer": "pecan_ray.integrations.transformers_trainer",
    },
)
