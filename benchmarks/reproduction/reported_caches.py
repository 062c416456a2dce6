"""What Quiver (FAST'20), SiloD (EuroSys'23) and Cachew (ATC'22) report of caches.

Of SiloD we have slides about the paper: its tables, some sentences, and figures without their numbers.
"""

from __future__ import annotations

from benchmarks.reproduction.cache_policies import ComparedPolicy

SYSTEMS: dict[str, ComparedPolicy] = {
    "SiloD": "greedy",
    "CoorDL": "coordl",
    "Alluxio": "alluxio",
    "Quiver": "quiver",
}
"""SiloD's comparison, with our policies of that name (SiloD's depends on the schedule)."""
SILOD_TABLE6: dict[str, tuple[float, float]] = {
    "SiloD": (3366, 3807),
    "CoorDL": (4278, 4870),
    "Alluxio": (4378, 5080),
    "Quiver": (3609, 3933),
}
"""Minutes on eight real V100: average job completion time, makespan (SiloD Table 6)."""
SILOD_SIMULATED: dict[str, tuple[float, float]] = {
    "SiloD": (3403, 3718),
    "CoorDL": (4406, 4918),
    "Alluxio": (4484, 4986),
    "Quiver": (3592, 3915),
}
"""The same by the authors' own simulator."""
SILOD_CACHE_TABLE: dict[str, tuple[float, float]] = {
    "ResNet-50, first": (1.3, 0.0),
    "ResNet-50, second": (0.7, 52.6),
    "EfficientNetB1, first": (0.0, 69.0),
    "EfficientNetB1, second": (0.0, 69.0),
    "BERT": (0.0, 8.0),
}
"""TB of cache and MB/s of remote storage under SiloD (Evaluation 1-1)."""
MODELS: dict[str, float] = {
    "resnet-50": 114e6,
    "resnet-152": 43e6,
    "efficientnet-b1": 69e6,
    "vlad": 10e6,
    "bert": 2e6,
}
"""Bytes a second that a model reads on a V100 when it never waits (SiloD Figure 6)."""
DATASETS: dict[str, float] = {
    "imagenet-22k": 1.36e12,
    "open images": 660e9,
    "imagenet-1k": 143e9,
    "youtube-8m": 1.46e12,
    "web search": 20.9e12,
}
"""Bytes (SiloD Table 4)."""

QUIVER_TABLE3: dict[str, tuple[float, float, float]] = {
    "ResNet50": (2505, 646, 1064),
    "Inception": (2874, 1274, 1817),
    "DeepSpeech": (1614, 1234, 1265),
}
"""Seconds of 7,000 mini-batches of seven jobs: all from remote storage, all from the cache, fetched together."""
QUIVER_DATASETS: dict[str, float] = {"ResNet50": 154e9, "Inception": 531e9, "DeepSpeech": 90e9}
"""Bytes of ImageNet, OpenImages and LibriSpeech (Quiver §7.1)."""
QUIVER_FIGURE6: dict[tuple[str, float], float] = {
    ("Quiver", 100.0): 1.6,
    ("Quiver", 700.0): 2.32,
    ("LRU", 700.0): 2.2,
}
"""Throughput of the cluster over that without cache, by GB of cache: what §7.6 tells of Figure 6."""

CACHEW_8: dict[int, tuple[float, float, float]] = {
    200: (309, 267, 436),
    250: (298, 267, 431),
    300: (307, 305, 432),
    350: (353, 352, 433),
    400: (408, 402, 431),
    450: (455, 453, 434),
    500: (506, 501, 427),
    550: (553, 552, 438),
}
"""By injected milliseconds for a batch: those that a batch took in compute, source cache and full cache mode (the
reference plot for Figure 8 in Cachew's artifact)."""
