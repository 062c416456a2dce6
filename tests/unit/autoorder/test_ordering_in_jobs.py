"""AutoOrder at work before a job: its order, its report, its errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import pecan_ray as pecan
from pecan_ray.errors import ColumnError, OpError, PlanError
from pecan_ray.plan.splits import Element
from tests.unit.autoorder.sampled_orders import (
    ELEMENTS,
    half,
    images,
    tone,
)


def configured(**options: Any) -> pecan.PecanPipeline:
    return images(
        config=pecan.Config(sample_elements=ELEMENTS, **{"reorder": "safe", "sample_seconds": 60.0, **options})
    )


def test_a_job_runs_the_order_that_was_adopted_and_reports_it() -> None:
    seen: list[str] = []

    def note(name: str, fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def noting(image: Any) -> Any:
            seen.append(name)
            return fn(image)

        return noting

    pipe = (
        configured().map(note("tone", tone), on="image", name="tone").map(note("half", half), on="image", name="half")
    )
    with pipe.batch(4).iter_batches(debug=True) as batches:
        assert seen == []  # the sample runs copies of the functions
        next(batches)
        (event,) = batches.report().events
    assert seen[:4] == ["half", "tone", "half", "tone"]
    assert event.kind == "reorder" and event.text.startswith("AutoOrder moved half before tone")
    assert "AutoOrder moved half before tone" in str(batches.report())


def test_a_pipeline_is_sampled_once() -> None:
    pipe = configured().map(tone, on="image").map(half, on="image").batch(4)
    first, second = (pipe.iter_batches(debug=True).report().events for _ in range(2))
    assert first == second and first
    assert re.search(r"1 +2 +half", pipe.explain())


def test_an_error_in_the_sample_is_the_jobs_to_raise() -> None:
    def fragile(element: Element) -> Element:
        raise ValueError("broken")

    pipe = configured().map(fragile).map(half, on="image").batch(4)
    batches = pipe.iter_batches(debug=True)
    (event,) = batches.report().events
    assert "its sample ended with OpError: fragile failed on" in event.text
    with pytest.raises(ValueError, match="broken"):
        next(batches)
    with pytest.raises(OpError, match="fragile failed on"):
        pipe.explain()


def test_a_wrong_column_name_is_told_before_a_job_begins() -> None:
    pipe = configured().map(tone, on="picture").map(half, on="image").batch(4)
    with pytest.raises(ColumnError, match="there is no column 'picture'"):
        pipe.iter_batches(debug=True)


def test_the_check_of_a_pipeline_is_asked() -> None:
    pipe = configured(reorder_check=lambda before, after: False).map(tone, on="image").map(half, on="image").batch(4)
    (event,) = pipe.iter_batches(debug=True).report().events
    assert "check= returned False" in event.text


@pytest.mark.parametrize(
    "wrong", [{"reorder": "fast"}, {"sample_elements": 0}, {"sample_seconds": 0}, {"reorder_check": 3}]
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match=next(iter(wrong))):
        pecan.Config(**wrong)
