"""pecan_ray: elastic input preprocessing for ML training, on Ray.

import pecan_ray as pecan

pipe = pecan.PecanPipeline(pecan.sources.ImageFolder("photos")).map(decode, on="image").batch(64)
for batch in pipe.iter_batches(epochs=10):
    train_step(batch)
"""

from pecan_ray import errors, sources
from pecan_ray.batches import Batches
from pecan_ray.observe.report import Report
from pecan_ray.options import Config, Workers
from pecan_ray.pipeline import PecanPipeline

__all__ = ["Batches", "Config", "PecanPipeline", "Report", "Workers", "errors", "sources"]
__version__ = "0.1.0"
