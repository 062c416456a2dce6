"""The examples that train, predict and demonstrate do what they say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from examples import resnet50
from examples.frameworks import LOOPS
from examples.language_model import IGNORED, pipelines, train_and_validate
from examples.photographs import derived_photographs
from examples.predict import SIDE, linear_model, pipeline, write_predictions
from examples.side_by_side import TimedLoop, bars, plain_batches, svg, table, timed


@pytest.mark.parametrize("library", [name for name in LOOPS if name != "ray-train"])
def test_a_line_is_learned(library: str) -> None:
    if library != "asyncio":
        pytest.importorskip({"lightning": "pytorch_lightning"}.get(library, library))
    assert LOOPS[library](debug=True) < 0.01


def test_training_and_validation_have_all_tokens_of_disjoint_documents_and_the_loss_falls(tmp_path: Path) -> None:
    words = bytes(np.random.default_rng(0).permutation(50).astype(np.uint8))
    texts = [words * (1 + number % 7) for number in range(60)]
    for number, text in enumerate(texts):
        (tmp_path / f"{number:02}.txt").write_bytes(text)
    parts = pipelines(tmp_path / "*.txt", length=64, batch=4)
    found = []
    for part in parts:
        batches = list(part.iter_batches(debug=True))
        found.append(sum(int((batch["segment"] > 0).sum()) for batch in batches))
        for batch in batches:
            rows, places = np.nonzero((batch["labels"] != IGNORED) & (batch["position"] < 63))
            inside = (places < 63) & (
                batch["segment"][rows, np.minimum(places + 1, 63)] == batch["segment"][rows, places]
            )
            rows, places = rows[inside], places[inside]
            assert (batch["labels"][rows, places] == batch["tokens"][rows, places + 1]).all()
    assert sum(found) == sum(map(len, texts)) and min(found) > 0
    losses = train_and_validate(*parts, epochs=3, debug=True)
    assert losses == sorted(losses, reverse=True) and losses[-1] < np.log(256)
    alone = pipelines(tmp_path / "00.txt", length=64, batch=4)
    assert np.isnan(train_and_validate(*alone, epochs=1, debug=True)).all(), "nothing is left to validate"


def test_each_image_has_its_own_prediction_and_a_bad_one_has_none(tmp_path: Path) -> None:
    rng, root, out = np.random.default_rng(1), tmp_path / "images", tmp_path / "predictions.parquet"
    (root / "one").mkdir(parents=True)
    for number in range(20):
        pixels = rng.integers(0, 255, (SIDE, SIDE, 3), np.uint8)
        Image.fromarray(pixels).save(root / "one" / f"{number:02}.png")
    (root / "one" / "05.png").write_bytes(b"no image")
    model = linear_model()
    rows, report = write_predictions(pipeline(root, batch=8), model, out, debug=True)
    written = {Path(row["path"]).name: row["prediction"] for row in pq.read_table(out).to_pylist()}
    assert rows == len(written) == 19 and "05.png" not in written
    for name, prediction in written.items():
        scores = model(np.asarray(Image.open(root / "one" / name))[None])
        assert prediction == scores.argmax(), name
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [out.name]
    assert report


def test_the_table_bars_and_picture_show_rates_waiting_and_times_behind_the_first_batch() -> None:
    loops = [TimedLoop("plain loop", 600, 0.5, 6.0, 2.0), TimedLoop("pecan_ray", 600, 3.0, 0.0, 2.0)]
    head, plain, ours = table(loops).splitlines()
    assert head.split() == ["images/s", "waiting", "time", "first", "batch"]
    assert plain.split() == ["plain", "loop", "75", "75%", "8.0s", "0.5s"]
    assert ours.split() == ["pecan_ray", "300", "0%", "2.0s", "3.0s"]
    plain, ours, _ = bars(loops).splitlines()
    assert (plain.count("#"), plain.count("."), ours.count("#"), ours.count(".")) == (10, 30, 10, 0)
    assert svg(loops, "4.0 times as fast").count("<rect") == 6
    assert timed("ready", iter([{"image": np.zeros((4, 2, 2, 3))}] * 3), 0.05).images == 8


def test_the_plain_loop_makes_what_the_pipeline_makes(tmp_path: Path) -> None:
    root = derived_photographs(12, cache=tmp_path)
    mine = list(plain_batches(Path(root), 4, 1))
    theirs = list(resnet50.pipeline(root, batch=4).iter_batches(debug=True))
    assert [{k: (v.dtype, v.shape) for k, v in one.items()} for one in mine] == [
        {k: (v.dtype, v.shape) for k, v in one.items()} for one in theirs
    ]
    assert sum(one["label"].sum() for one in mine) == sum(one["label"].sum() for one in theirs) == 12
