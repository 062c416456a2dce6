"""What decoders take over: only what has run on the sample, leaves values what was meant, and is faster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from skimage import data

import pecan_ray as pecan
from pecan_ray import images, part_decoding
from pecan_ray.autoorder.accepted import Ordering
from pecan_ray.autoorder.order_request import JobSize
from pecan_ray.errors import PlanError
from pecan_ray.options import EngineName
from pecan_ray.plan.splits import Element
from tests.unit.autoorder.sampled_orders import gain, ordering

COUNT = 24
NAMES = ("astronaut", "coffee", "chelsea")
needs_turbojpeg = pytest.mark.skipif(part_decoding.library() == part_decoding.NOT_THERE, reason=part_decoding.NOT_THERE)


@pytest.fixture(autouse=True)
def _time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """No load on the machine decides whether something was run, or is faster."""
    gain(monkeypatch, 2.0)
    monkeypatch.setattr("pecan_ray.autoorder.trial.TAKEN_OVER_S", 60.0)


def encoded(suffix: str = ".jpg", side: int = 512) -> list[Element]:
    """Photographs, each at a few sizes, as files."""
    made = []
    for number in range(COUNT):
        photograph: Any = getattr(data, NAMES[number % len(NAMES)])
        image = cv2.resize(photograph(), (side, side - 8 * (number % 5)))
        done, file = cv2.imencode(suffix, image)
        assert done
        made.append({"image": bytes(file.tobytes()), "number": number})
    return made


def photographs(engine: EngineName, *ops: Any, suffix: str = ".jpg", side: int = 512, **config: Any) -> Any:
    settings = pecan.Config(sample_seconds=60.0, **config)
    pipe = pecan.PecanPipeline(pecan.sources.Items(encoded(suffix, side)), engine=engine, name="album", config=settings)
    for op in (images.Decode(), *ops):
        pipe = pipe.map(op, on="image")
    return pipe


def run_ops(pipe: pecan.PecanPipeline, job: JobSize | None = None) -> list[str]:
    """The operators that a job would run."""
    plan = pipe._order.ordered(skip_bad=False, once=True, job=job).plan or pipe.plan
    return [op.name for op in plan.all_ops()]


def results(pipe: pecan.PecanPipeline) -> list[Any]:
    with pipe.iter_batches(debug=True) as batches:
        return [element["image"] for element in batches]


def rejects(found: Ordering) -> str:
    return " | ".join(one.reason for stretch in found.sequences for one in stretch.rejected)


def test_a_job_runs_what_was_found_and_explain_tells_it(cache_folder: Path) -> None:
    pipe = photographs("python", images.Resize(64, 64))
    text = pipe.explain()
    assert (
        "rewritten, as Decode, Resize are one, since AutoOrder knows images.Resize (rule known functions): " in text
        and "measured on" in text
        and "the whole pipeline" in text
    )
    assert "'number': equal on" in text and "'image': 24 of 24 elements differ" in text
    assert run_ops(pipe) == ["Resize"]
    again = photographs("python", images.Resize(64, 64))
    assert run_ops(again) == ["Resize"], "it is kept with the order"
    exact = results(photographs("python", images.Resize(64, 64), reorder="off"))
    mismatches = [float(np.abs(a.astype(int) - b).mean()) for a, b in zip(results(again), exact, strict=True)]
    assert 0 < max(mismatches) < 25


def test_what_makes_a_column_another_or_in_mode_strict_changes_pixels_is_not_taken_over() -> None:
    def with_corner(element: Element) -> Element:
        return {**element, "corner": element["image"][10, 10]}

    pipe = photographs("python", images.Resize(64, 64)).map(with_corner)
    assert "(rule known functions): column 'corner' becomes another one" in pipe.explain()
    assert "Decode" in run_ops(pipe)
    found = ordering(photographs("python", images.Resize(64, 64)), "strict")
    assert found.decoders == ()
    assert "images would be decoded at a reduced size, or warped at once, which changes their pixels" in rejects(found)


@needs_turbojpeg
def test_mode_strict_decodes_a_crop_alone_with_equal_pixels() -> None:
    ops = (images.RandomCrop(area=(0.1, 0.3)), images.Resize(64, 64))
    pipe = photographs("python", *ops, reorder="strict")
    found = ordering(pipe, "strict")
    assert found.decoders == ("Decode+RandomCrop+Resize exactly",) and not found.changed
    (stretch,) = found.sequences
    assert all(one.changed == 0 for one in stretch.taken_over.detected_changes)
    exact = results(photographs("python", *ops, reorder="off"))
    assert run_ops(pipe) == ["RandomCrop"]
    assert "Decode, RandomCrop, Resize are one, since AutoOrder knows images.RandomCrop (rule" in pipe.explain()
    assert all(np.array_equal(a, b) for a, b in zip(results(pipe), exact, strict=True))


def test_what_a_decoder_cannot_take_over_or_not_faster_or_not_in_time_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:
        without.setattr(part_decoding, "library", lambda: part_decoding.NOT_THERE)
        found = ordering(photographs("python", images.CenterCrop(64, 64)), "strict")
        assert "(rule known functions): there is no library TurboJPEG 3 (pip install pecan_ray[jpeg])" in rejects(found)
    gain(monkeypatch, 1.0)
    found = ordering(photographs("python", images.Resize(64, 64)))
    assert found.decoders == () and "and needs to be 1.05 times" in rejects(found)
    pipe = photographs("python", images.Resize(64, 64))
    brief = pipe._with(pipe.plan)
    brief._config = pecan.Config()
    assert run_ops(brief, JobSize(passes=1.0, cpus=64)) == ["Decode", "Resize"], "too short a job for a look"
    assert run_ops(photographs("python", images.Resize(64, 64), reorder="pecan")) == ["Decode", "Resize"]
    monkeypatch.setattr("pecan_ray.autoorder.trial.TAKEN_OVER_S", -1.0)
    monkeypatch.setattr("pecan_ray.autoorder.trial.RUNS_OF_LEAST", -1)
    found = ordering(photographs("python", images.Resize(64, 64)))
    assert found.decoders == () and "there was no time to run it" in rejects(found)


def test_each_of_several_decoders_is_judged_by_itself() -> None:
    def with_corner(element: Element) -> Element:
        return {**element, "corner": element["other"][10, 10]}

    items = [{**element, "other": element["image"]} for element in encoded()]
    pipe = pecan.PecanPipeline(pecan.sources.Items(items))
    for column in ("image", "other"):
        pipe = pipe.map(images.Decode(), on=column, name=f"decode_{column}")
        pipe = pipe.map(images.Resize(64, 64), on=column, name=f"resize_{column}")
    found = ordering(pipe.map(with_corner))
    assert found.decoders == ("decode_image+resize_image",)
    assert [one.column for one in found.sequences[0].taken_over.detected_changes if one.changed] == ["image"]


def test_a_file_says_whether_the_decoder_takes_over(tmp_path: Path) -> None:
    path = tmp_path / "order.json"
    written: dict[str, Any] = {"format": 1, "orders": [["Decode", "Resize"]]}
    path.write_text(json.dumps(written))
    assert run_ops(photographs("python", images.Resize(64, 64), order_file=path)) == ["Decode", "Resize"]
    path.write_text(json.dumps({**written, "decoders": ["Decode+Resize"]}))
    assert run_ops(photographs("python", images.Resize(64, 64), order_file=path)) == ["Resize"]
    for wrong, said in ((["Resize"], "lets 'Resize' take over"), ("Decode", "must be a list of operators' names")):
        path.write_text(json.dumps({**written, "decoders": wrong}))
        with pytest.raises(PlanError, match=said):
            run_ops(photographs("python", images.Resize(64, 64), order_file=path))
