"""The example that writes predictions: a row for each image, beside its path, and none for what cannot be decoded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from PIL import Image

from examples.predict import SIDE, linear_model, pipeline, write_predictions


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
