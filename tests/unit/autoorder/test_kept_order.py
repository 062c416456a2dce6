"""Orders that are kept, saved, shown and pinned."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.autoorder.accepted import Ordered
from pecan_ray.autoorder.job_order import JobOrder
from pecan_ray.autoorder.kept_order import KeptOrder, keep_order, load_kept
from pecan_ray.autoorder.order_request import JobSize
from pecan_ray.cli import main
from pecan_ray.errors import PlanError, StateError
from pecan_ray.images import Decode, Resize
from tests.unit.autoorder.sampled_orders import tone
from tests.unit.autoorder.test_autoorder_decided import half

ELEMENTS = 32
pytestmark = pytest.mark.usefixtures("on_the_meter")


def flip(image: Any) -> Any:
    return image[:, ::-1].copy()


def images(seed: int | None = None, *, side: int = 64, **options: Any) -> pecan.PecanPipeline:
    noise = np.random.default_rng(0).integers(0, 255, (ELEMENTS, side, side, 3), np.uint8)
    config = pecan.Config(sample_elements=ELEMENTS, **{"reorder": "safe", "sample_seconds": 60.0, **options})
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(image=noise), name="noise", seed=seed, config=config)
    return pipe.map(tone, on="image").map(half, on="image").batch(4)


def as_run(pipe: pecan.PecanPipeline, *, job: JobSize | None = None) -> Ordered:
    """What a job of a pipeline is told to run."""
    return job_order(pipe).ordered(skip_bad=False, once=True, job=job)


def job_order(pipe: pecan.PecanPipeline) -> JobOrder:
    order: JobOrder = pipe._order
    return order


def names(ordered: Ordered) -> list[str]:
    return list(ordered.order[0])


def test_an_order_is_found_once_run_by_all_later_jobs_and_shown_until_it_is_asked_for_again(cache_folder: Path) -> None:
    first, shown = as_run(images()), images().explain()
    assert names(first) == ["half", "tone"] and "AutoOrder moved half before tone" in first.notes[0]
    (file,) = (cache_folder / "pecan_ray" / "orders").iterdir()
    again = as_run(images())
    assert names(again) == ["half", "tone"]
    assert f"AutoOrder runs half -> tone -> batch: it is kept in {file}" in again.notes[0]
    assert again.notes[0] in shown and "--again" in shown and "measured on" in shown
    # What is kept is run, whatever a look would find.
    kept = {**json.loads(file.read_text()), "orders": [["tone", "half"]], "facts": None, "why": "by hand"}
    file.write_text(json.dumps(kept))
    assert names(as_run(images())) == ["tone", "half"]
    assert "the order as it is written: " in images().explain() and "by hand" in images().explain()
    assert "AutoOrder moved half before tone" in images().explain(again=True)
    assert json.loads(file.read_text())["orders"] == [["half", "tone"]]


def test_orders_are_kept_for_the_pipeline_and_the_data_that_they_were_found_for(tmp_path: Path) -> None:
    others = (images(), images(reorder="strict"), images(side=32), images().map(flip, on="image"))
    keys = {job_order(pipe)._key for pipe in others}
    assert len(keys) == 4
    assert job_order(images())._key in keys, "and one that is written alike the same one"

    def key() -> str:
        source = pecan.sources.TextLines(str(tmp_path))
        return job_order(pecan.PecanPipeline(source).map(flip, on="line"))._key

    (tmp_path / "a.txt").write_text("one\n")
    before = key()
    assert key() == before
    (tmp_path / "a.txt").write_text("one and two\n")
    assert key() != before


def test_the_first_order_that_is_found_is_kept_unless_it_cannot_be_read_or_written(tmp_path: Path) -> None:
    file, first, second = tmp_path / "new" / "key.json", KeptOrder((("a", "b"),)), KeptOrder((("b", "a"),))
    assert load_kept(file) is None
    assert keep_order(file, first) is first
    assert keep_order(file, second) == first == load_kept(file)
    assert keep_order(file, second, instead=True) == second == load_kept(file)
    assert [one.name for one in (tmp_path / "new").iterdir()] == ["key.json"]
    for text in ("{", "[]", '{"format": 99}', '{"format": 1, "orders": [["a", 2]]}'):
        file.write_text(text)
        assert load_kept(file) is None
        assert keep_order(file, first) is first
        assert load_kept(file) == first
    (tmp_path / "file").write_text("")
    assert names(as_run(images(order_folder=tmp_path / "file" / "folder"))) == ["half", "tone"]


@pytest.mark.parametrize("kept", [True, False])
def test_an_order_that_a_job_could_not_run_is_replaced_by_the_one_as_written(
    kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pipe = images(order_folder=tmp_path if kept else "")
    first = as_run(pipe)
    assert first.on_fallback is not None
    first.on_fallback("half failed on an image")
    assert names(as_run(pipe)) == ["tone", "half"]
    assert len(list(tmp_path.iterdir())) == int(kept)
    if kept:
        assert "half failed on an image" in as_run(pipe).notes[0] and "half failed on an image" in pipe.explain()


def test_a_saved_order_is_pinned_without_a_sample_and_beats_a_kept_one_and_a_seed(tmp_path: Path) -> None:
    path = tmp_path / "order.json"
    images().save_order(path)
    pinned = images(order_file=path, order_folder="")
    assert names(as_run(pinned)) == ["half", "tone"]
    assert f"{path} pins it" in as_run(pinned).notes[0] and as_run(pinned).on_fallback is None
    assert "measured" in pinned.explain() and f"{path} pins it" in pinned.explain()
    path.write_text('{"format": 1, "orders": [["tone", "half"]]}')
    assert names(as_run(images(order_file=path))) == ["tone", "half"]
    assert names(as_run(images(3, order_file=path))) == ["tone", "half"]


@pytest.mark.parametrize(
    ("written", "config", "said"),
    [
        ({"orders": [["half", "smooth"]]}, {}, "none is named 'smooth'"),
        ({"orders": [["half"]]}, {}, "has the order 'half', which the pipeline noise cannot have"),
        ({"orders": [["half", "tone", "half"]]}, {}, "has the order 'half', 'tone', 'half'"),
        ({"orders": [["half", "tone", "late"]]}, {}, "has the order 'half', 'tone', 'late'"),
        ({"orders": [["half", "tone", "batch"]]}, {}, "none is named 'batch'"),
        ({"orders": "half"}, {}, "orders must be a list of lists"),
        ({"orders": [["half", "tone"], []]}, {}, "of which none is empty"),
        ({"orders": [["tone", "half"], ["half", "tone"]]}, {}, "and another one of the same operators"),
        ({"format": True}, {}, "format 1, but has True"),
        ({"decoder": ["half+tone in rows"]}, {}, "it has 'decoder', which no order file has"),
        ({}, {"reorder_exchanges": False}, r"asks for what Config\(reorder_exchanges=False\) excludes"),
    ],
)
def test_an_order_file_is_refused_at_once_for_each_thing_that_would_not_be_done(
    tmp_path: Path, written: dict[str, Any], config: dict[str, Any], said: str
) -> None:
    path = tmp_path / "order.json"
    path.write_text(json.dumps({"format": 1, "orders": [["half", "tone"]], **written}))
    pipe = images(order_file=path, **config).unbatch().map(flip, on="image", name="late")
    for call in (pipe.explain, lambda: pipe.iter_batches(debug=True)):
        with pytest.raises(PlanError, match=said) as caught:
            call()
        assert str(path) in caught.value.message and "pecan explain --save" in caught.value.message


@pytest.mark.parametrize(
    "facts",
    [5, {"seconds": "x"}, {"stretches": [{"measured": {"type": "system", "fields": {"command": "true"}}}]}],
)
def test_facts_that_are_none_are_left_out(tmp_path: Path, facts: Any) -> None:
    path = tmp_path / "order.json"
    path.write_text(json.dumps({"format": 1, "orders": [["half", "tone"]], "facts": facts}))
    assert names(as_run(images(order_file=path))) == ["half", "tone"]


def test_an_order_file_that_is_none_or_contradicts_the_mode_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "order.json"
    path.write_text("[" * 100_000)
    with pytest.raises(PlanError, match="is no order file"):
        images(order_file=path).iter_batches(debug=True)
    with pytest.raises(PlanError, match=r"cannot read the order file nowhere\.json"):
        images(order_file="nowhere.json").iter_batches(debug=True)
    with pytest.raises(PlanError, match="leave one of them out"):
        pecan.Config(order_file="order.json", reorder="off")


def test_a_pinned_order_moves_nothing_that_is_to_keep_its_position(tmp_path: Path) -> None:
    path = tmp_path / "order.json"
    path.write_text('{"format": 1, "orders": [["late", "half", "tone", "kept"]]}')
    source = pecan.sources.Items([{"image": np.zeros((8, 8, 3), np.uint8)}])
    pipe = pecan.PecanPipeline(source, config=pecan.Config(order_file=path))
    pipe = pipe.map(tone, on="image").map(half, on="image").map(flip, on="image", name="kept", keep_position=True)
    pipe = pipe.map(flip, on="image", name="late").batch(4)
    with pytest.raises(PlanError, match="which moves 'kept', or others across it"):
        pipe.iter_batches(debug=True)
    path.write_text('{"format": 1, "orders": [["half", "tone", "kept", "late"]]}')
    pipe.iter_batches(debug=True)


def test_a_folder_that_can_keep_no_orders_is_told_before_the_job_begins(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        pipe = images(order_folder=folder)
        for call in (pipe.explain, lambda pipe=pipe: pipe.iter_batches(debug=True)):
            with pytest.raises(PlanError, match="no orders can be kept in order_folder="):
                call()
    assert "order_folder" not in images(order_folder=tmp_path / "new").explain()


def pixels(pipe: pecan.PecanPipeline) -> Any:
    with pipe.iter_batches(debug=True) as batches:
        return np.concatenate([batch["image"] for batch in batches])


def test_with_a_seed_results_are_those_of_the_order_as_written(cache_folder: Path) -> None:
    written = pixels(images(reorder="off"))
    assert not np.array_equal(pixels(images()), written), "a half is rounded before it is toned down"
    for seed in (0, 7):
        assert np.array_equal(pixels(images(seed)), written)
        assert any("a seed is given" in said for said in as_run(images(seed)).notes)
        assert "a seed is given" in images(seed).explain()
    assert as_run(images(0, reorder="off")).notes == ()
    for named in ("strict", "pecan"):
        assert not any("a seed is given" in said for said in as_run(images(0, reorder=named)).notes)


def test_the_command_saves_an_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    program, order = tmp_path / "program_of_orders.py", tmp_path / "order.json"
    program.write_text("from tests.unit.autoorder.test_kept_order import images\npipe = images(4)\n")
    assert main(["explain", str(program), "--save", str(order)]) == 0
    told = capsys.readouterr()
    assert f'pin it by Config(order_file="{order}")' in told.err and told.out.startswith("noise (mode")
    assert json.loads(order.read_text())["orders"] == [["half", "tone"]]
    assert main(["explain", str(program), "--again"]) == 0


def runs_under(pipe: pecan.PecanPipeline, order: Any, *decoders: str, cuts_elements: bool = False) -> Any:
    """Return the order that a job runs which goes on from a state."""
    pinned = pipe._order.pinned(order, decoders, cuts_elements=cuts_elements)
    pinned.check()
    return pinned.ordered(skip_bad=False, once=False, job=None)


@pytest.mark.parametrize("order", [("tone", "half"), ("half", "tone")])
def test_a_state_pins_its_order_whatever_is_kept_or_a_look_would_find(tmp_path: Path, order: Any) -> None:
    pipe = images(order_folder=tmp_path)
    keep_order(tmp_path / f"{pipe._order._key}.json", KeptOrder((order[::-1],)), instead=True)
    ordered = runs_under(pipe, (order,))
    assert ordered.order == (order,) and (ordered.plan is None) == (order == ("tone", "half"))
    assert "the state was taken under it" in ordered.notes[0]
    assert ordered.reorder_after_epoch is None and ordered.on_fallback is None, "and nothing is kept of it"


def test_a_state_names_operators_that_the_decoder_has_taken_over_too(tmp_path: Path) -> None:
    pipe = pecan.PecanPipeline(pecan.sources.Items([{"image": b""}]), config=pecan.Config(order_folder=tmp_path))
    pipe = pipe.map(Decode(), on="image", name="decode").map(Resize(8, 8), on="image", name="resize")
    pipe = pipe.map(flip, on="image").batch(1)
    order = (("decode", "resize", "flip"),)
    ordered = runs_under(pipe, order, "decode+resize")
    assert [op.name for op in ordered.plan.ops] == ["resize", "flip", "batch"], "the decoder resizes"
    assert (ordered.order, ordered.decoders) == (order, ("decode+resize",))
    without = runs_under(pipe, order)
    assert without.plan is None and without.order == order, "it did not when the state was taken"


def test_an_order_of_a_state_that_a_file_contradicts_or_the_pipeline_cannot_have_is_refused(
    tmp_path: Path,
) -> None:
    KeptOrder((("half", "tone"),)).save(tmp_path / "order.json")
    pipe = images(order_file=tmp_path / "order.json")
    state = (("tone", "half"),)
    assert runs_under(pipe, state).order == (("half", "tone"),), "no element is partly delivered"
    assert runs_under(pipe, (("half", "tone"),), cuts_elements=True).order == (("half", "tone"),)
    with pytest.raises(StateError, match=r"under the order tone -> half, .* partly.*order\.json pins half -> tone"):
        runs_under(pipe, state, cuts_elements=True)
    with pytest.raises(StateError, match="the order tone -> flip, which this pipeline cannot have"):
        runs_under(images(), (("tone", "flip"),))
