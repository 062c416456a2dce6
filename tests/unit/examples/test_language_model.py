"""The example that trains on packed rows and validates after each epoch."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from examples.language_model import IGNORED, pipelines, train_and_validate


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


def test_a_single_document_is_trained_on_and_leaves_nothing_to_validate(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_bytes(bytes(range(100)))
    losses = train_and_validate(*pipelines(tmp_path / "*.txt", length=64, batch=4), epochs=1, debug=True)
    assert np.isnan(losses).all()
