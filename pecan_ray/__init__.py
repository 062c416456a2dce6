"""pecan_ray: elastic input preprocessing for ML training, on Ray.

import pecan_ray as pecan

pipe = pecan.PecanPipeline(pecan.sources.ImageFolder("photos")).map(decode, on="image").batch(64)
for batch in pipe.iter_batches(epochs=10):
    train_step(batch)
"""

import concurrent.futures.thread  # noqa: F401  # it cannot be imported for the first time while the interpreter ends
from typing import TYPE_CHECKING

from pecan_ray.lazy import lazy_names

if TYPE_CHECKING:
    from pecan_ray import errors, images, media, sources
    from pecan_ray.autoorder import SampleProfile, sample_profile
    from pecan_ray.batches import Batches
    from pecan_ray.cache_options import Cache, ClusterIo
    from pecan_ray.job.merge_states import merge_states
    from pecan_ray.observe.report import Report
    from pecan_ray.options import AutoWorkers, Config, Workers
    from pecan_ray.pipeline import PecanPipeline
    from pecan_ray.plan.deadline import Deadline
    from pecan_ray.plan.weight_schedule import WeightSchedule
    from pecan_ray.runtime.journal_state import journal_state
    from pecan_ray.sampling.packing import cu_seqlens
    from pecan_ray.splitting import split

__all__ = [
    "AutoWorkers",
    "Batches",
    "Cache",
    "ClusterIo",
    "Config",
    "Deadline",
    "PecanPipeline",
    "Report",
    "SampleProfile",
    "WeightSchedule",
    "Workers",
    "cu_seqlens",
    "errors",
    "images",
    "journal_state",
    "media",
    "merge_states",
    "sample_profile",
    "sources",
    "split",
]
__version__ = "0.2.0"

__getattr__ = lazy_names(
    __name__,
    {
        "AutoWorkers": "pecan_ray.options",
        "Batches": "pecan_ray.batches",
        "Cache": "pecan_ray.cache_options",
        "ClusterIo": "pecan_ray.cache_options",
        "Config": "pecan_ray.options",
        "Deadline": "pecan_ray.plan.deadline",
        "PecanPipeline": "pecan_ray.pipeline",
        "Report": "pecan_ray.observe.report",
        "SampleProfile": "pecan_ray.autoorder",
        "WeightSchedule": "pecan_ray.plan.weight_schedule",
        "Workers": "pecan_ray.options",
        "cu_seqlens": "pecan_ray.sampling.packing",
        "errors": "",
        "images": "",
        "media": "",
        "journal_state": "pecan_ray.runtime.journal_state",
        "merge_states": "pecan_ray.job.merge_states",
        "sample_profile": "pecan_ray.autoorder",
        "sources": "",
        "split": "pecan_ray.splitting",
    },
)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
