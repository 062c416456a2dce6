"""Options refuse nonsense when they are made, with the name, the rule and the value."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest

from pecan_ray import PecanPipeline, sources
from pecan_ray.cache_options import Cache
from pecan_ray.errors import PlanError
from pecan_ray.options import AutoWorkers, Config, IterOptions, PlacementMode, Workers
from pecan_ray.placement.policy import MODES
from pecan_ray.plan.deadline import Deadline
from pecan_ray.plan.prices import Prices, PriceTier

REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: Workers(local=-1), r"Workers\(local=\.\.\.\) must be a whole number >= 0, but got -1"),
    (lambda: Workers(0, 0), "would never produce a batch: ask for at least one worker"),
    (lambda: Config(cpus_per_worker=0), "cpus_per_worker must be positive and finite, but got 0"),
    (lambda: Config(error_budget=-0.1), "error_budget must be a share"),
    (lambda: Config(ring_bytes=1000), "ring_bytes must be at least 1 MiB, but got 1000"),
    (lambda: IterOptions(epochs=0), r"epochs must be at least 1 \(or None for no end\), but got 0"),
    (lambda: IterOptions(rank=2, world_size=2), r"rank must be in \[0, world_size\), but got rank=2, world_size=2"),
    (lambda: AutoWorkers(max_local=1, min_local=2), "min_local must be from 0 to max_local, but got 2 and 1"),
    (lambda: AutoWorkers(max_per_hour=10.0), r"max_per_hour=10\.0 is a budget in \$ and needs prices"),
    (lambda: AutoWorkers(max_per_hour=math.nan, prices=Prices(1, 1)), "max_per_hour must be .* but got nan"),
    (lambda: AutoWorkers(mode="pecan", objective="no_wait"), "is only known to mode='auto'"),
    (lambda: IterOptions(epochs=None, workers=AutoWorkers(objective=Deadline(10))), "needs a job that ends"),
    (lambda: IterOptions(sharding="static", workers=AutoWorkers()), "deals the data to fixed workers"),
]


OF_OTHER_KINDS: list[tuple[Any, dict[str, Any], str]] = [
    (IterOptions, {"epochs": 1.5}, "epochs must be a whole number or None, but got 1.5"),
    (IterOptions, {"order": ["strict"]}, "order must be one of 'relaxed', 'strict' or None, but got ['strict']"),
    (Config, {"reorder": "fast"}, "reorder must be one of"),
    (Config, {"sample_elements": 0}, "sample_elements must be"),
    (Config, {"sample_seconds": 0}, "sample_seconds must be"),
    (Config, {"hung_after_s": 4.9}, "hung_after_s must be at least 5"),
    (Config, {"cpus_per_worker": True}, "cpus_per_worker must be a number, but got True"),
    (Config, {"remote_labels": {"zone": 1}}, "must be a mapping from a text to a text, but got {'zone': 1}"),
    (AutoWorkers, {"objective": 5}, "objective must be one of 'cost', 'no_wait' or Deadline(...), but got 5"),
    (AutoWorkers, {"max_local_cpu_fraction": 2}, "max_local_cpu_fraction must be a share in [0, 1], but got 2"),
    (Prices, {"accelerator_host": 1, "remote_worker": 1, "tiers": ("a",)}, "Prices(tiers=...) must be a list of"),
    (PriceTier, {"label": "a", "price": 1, "limit": "1"}, "PriceTier(limit=...) must be a whole number"),
]


def test_nonsense_and_a_value_of_another_kind_are_refused_by_name() -> None:
    for call, message in REFUSED:
        with pytest.raises(PlanError, match=message):
            call()
    for make, given, message in OF_OTHER_KINDS:
        with pytest.raises(PlanError, match=re.escape(message)):
            make(**given)
    groups: tuple[Any, ...] = (Workers, AutoWorkers, Cache, Config, IterOptions)
    for group in groups:
        for field in dataclasses.fields(group):
            with pytest.raises(PlanError, match=rf"\b{field.name}\b.* must be .*, but got <object"):
                group(**{field.name: object()})


def test_numbers_of_numpy_become_pythons() -> None:
    whole: dict[str, Any] = {"epochs": np.int64(2), "rank": np.int32(0), "prefetch_bytes": np.uint64(1)}
    options = IterOptions(**whole)
    assert (type(options.epochs), type(options.rank), type(options.prefetch_bytes)) == (int, int, int)
    others: dict[str, Any] = {"cpus_per_worker": np.float32(0.5), "hung_after_s": math.inf, "progress": np.bool_(True)}
    config = Config(**others)
    assert (type(config.cpus_per_worker), config.cpus_per_worker, config.progress) == (float, 0.5, True)


def test_a_live_job_may_run_every_mode_that_the_policies_know() -> None:
    assert set(get_args(PlacementMode)) == set(MODES)


def test_what_is_no_quota_is_refused_before_anything_starts() -> None:
    with PecanPipeline(sources.Items([{"x": 1}])).iter_batches(debug=True) as batches:
        for wrong in (0.0, -1.0, math.nan, math.inf):
            for call in (lambda wrong=wrong: Config(remote_io=wrong), lambda wrong=wrong: batches.set_remote_io(wrong)):
                with pytest.raises(PlanError, match="remote_io must be a"):
                    call()


BY_PLACE = {
    **dict.fromkeys(("Csv", "Files", "JsonLines", "TFRecords", "TextLines", "WebDataset"), "paths"),
    **dict.fromkeys(("HuggingFace", "RayDataset", "TorchIterable"), "dataset"),
    **dict.fromkeys(("ByIndex", "Resampled"), "source"),
    **dict.fromkeys(("AudioFolder", "ImageFolder"), "root"),
    **dict.fromkeys(("LitData", "Mds"), "folder"),
    **{"Arrays": "", "Blend": "sources", "Env": "name", "Items": "items", "Lance": "uri columns"},
    **{"Parquet": "paths columns", "TokenFiles": "path length"},
}


def test_of_a_source_what_it_reads_is_given_by_place_and_options_by_name() -> None:
    def by_place(made: Any) -> str:
        given = inspect.signature(made).parameters.values()
        return " ".join(one.name for one in given if one.kind is one.POSITIONAL_OR_KEYWORD)

    assert {name: by_place(getattr(sources, name)) for name in sources.__all__} == BY_PLACE


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        *((kind, {"types": {"x": "int8"}, "fill": {"x": 1}, "mask": {"x": "y"}}) for kind in ("Csv", "JsonLines")),
        ("Parquet", {"fill": {"x": 1}, "mask": {"x": "y"}}),
        ("TFRecords", {"parse": True, "features": {"x": "int64"}}),
        ("TextLines", {}),
    ],
)
def test_a_source_has_a_hash_whatever_its_options_are_and_its_text_names_paths_once(
    kind: str, more: dict[str, Any]
) -> None:
    options = {"partitions": {"p": "string"}, "storage_options": {"region": "eu"}, **more}
    one, other = (getattr(sources, kind)(["s3://bucket/one", "s3://bucket/two"], **options) for _ in range(2))
    assert hash(one) == hash(other) and one == other
    assert str(one).count("bucket/one") == 1
