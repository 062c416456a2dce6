"""What a pipeline begins with: operators that belong to its source."""

from __future__ import annotations

from pecan_ray.errors import PlanError
from pecan_ray.images import Decode
from pecan_ray.integrations.map_style import stacked
from pecan_ray.options import EngineName
from pecan_ray.plan.arguments import a_function
from pecan_ray.plan.operators import ELEMENTS, Collate, Function, Map, Plan
from pecan_ray.plan.own_attributes import called
from pecan_ray.plan.splits import Element, Source
from pecan_ray.sources.by_index import ByIndex
from pecan_ray.sources.image_folder import ImageFolder

NEEDS_BATCH_SAMPLER = "collate=... needs a batch_sampler. Else write .batch(n, collate=fn)."


def initial_plan(source: Source, engine: EngineName, collate: Function | None) -> Plan:
    """Return the plan of a source: images are decoded where it says so, and batches of a batch sampler made."""
    plan = Plan(head=source)
    in_batches = isinstance(source, ByIndex) and source.stacks
    if collate is not None and not in_batches:
        raise PlanError(f"PecanPipeline: {NEEDS_BATCH_SAMPLER}")
    if in_batches and engine != "python":
        raise PlanError(f'batch_sampler=... gives the {engine} engine no batches: use engine="python".')
    written = source.given if isinstance(source, ByIndex) else source
    if isinstance(written, ImageFolder) and written.decode:
        decode = Map(name="Decode", fn=decode_all) if in_batches else Map(name="Decode", fn=Decode(), on="image")
        plan = plan.then(decode)
    return plan.then(_collate(collate)) if in_batches else plan


def _collate(collate: Function | None) -> Collate:
    """Return the operator that makes batches of what a batch sampler has drawn; None: arrays are stacked."""
    if collate is None:
        return Collate(name="collate", fn=stacked)
    fn = a_function("PecanPipeline(collate=...)", collate)
    return Collate(name=called(fn, "collate"), fn=fn)


def decode_all(batch: Element) -> Element:
    """Decode the images of the elements of a batch."""
    decode = Decode()
    return {ELEMENTS: [{**element, "image": decode(element["image"])} for element in batch[ELEMENTS]]}
