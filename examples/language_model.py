"""A language model on packed rows of tokens, which is validated after each epoch on documents that it never sees.

    python examples/language_model.py --epochs 3
    python examples/language_model.py --data "/texts/*.txt" --length 1024
    ray job submit --working-dir . -- python examples/language_model.py --local 1

Tokens are bytes, and the model knows only the token before: it is small enough to be trained by NumPy.  Without --data
the documents are the modules of Python's standard library.
"""

from __future__ import annotations

import sys
from pathlib import Path

# A script finds only its own folder: `examples`, and pecan_ray in a checkout, are above it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import argparse
import math
import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import pecan_ray as pecan
from examples.consumer import BatchColumns, fixed_workers

VOCABULARY = 256
IGNORED = -100
"""Label of a token that has no successor in its document."""


def tokenize(file: dict[str, Any]) -> dict[str, Any]:
    """Return the tokens of a document, and for each of them the next one as its label."""
    tokens = np.frombuffer(file["content"], np.uint8).astype(np.int64)
    return {"tokens": tokens, "labels": np.append(tokens[1:], IGNORED)}


def pipelines(
    paths: str | os.PathLike[str], *, length: int = 512, batch: int = 16
) -> tuple[pecan.PecanPipeline, pecan.PecanPipeline]:
    """Return a pipeline of training and one of validation, over disjoint documents.

    Batches: `tokens`, `labels`, `segment` and `position`, int64 [n, length] each.
    """
    documents = pecan.PecanPipeline(pecan.sources.Files(paths, split_files=8), name="language", seed=0).map(tokenize)
    training, validation = pecan.split(documents, [0.9, 0.1])
    labels = {"labels": IGNORED}
    return (
        training.shuffle(256).pack(length, along=labels).batch(batch),
        validation.pack(length, along=labels).batch(batch),
    )


class Bigrams:
    """A model of the next token, given the one before it: one layer, trained by gradient descent."""

    def __init__(self, rate: float = 20.0) -> None:
        self._logits: NDArray[np.float64] = np.zeros((VOCABULARY, VOCABULARY))
        self._rate = rate

    def loss(self, batch: BatchColumns, *, train: bool) -> tuple[float, int]:
        """Return the sum of the tokens' losses in nats and their number; `train`: learn from them, too."""
        known = batch["labels"] != IGNORED
        before, after = batch["tokens"][known], batch["labels"][known]
        counts = np.zeros_like(self._logits)
        np.add.at(counts, (before, after), 1.0)
        odds = np.exp(self._logits - self._logits.max(axis=1, keepdims=True))
        odds /= odds.sum(axis=1, keepdims=True)
        if train:
            expected = odds * counts.sum(axis=1, keepdims=True)
            self._logits += self._rate * (counts - expected) / max(len(after), 1)
        return float(-(counts * np.log(odds)).sum()), len(after)


def mean_loss(model: Bigrams, batches: Iterable[BatchColumns], *, train: bool) -> float:
    """Return the loss a token over batches, in nats; NaN where they hold none."""
    losses = [model.loss(batch, train=train) for batch in batches]
    tokens = sum(count for _, count in losses)
    return sum(loss for loss, _ in losses) / tokens if tokens else math.nan


def train_and_validate(
    training: pecan.PecanPipeline, validation: pecan.PecanPipeline, *, epochs: int, **options: Any
) -> list[float]:
    """Train, and return the loss a token on the documents of validation after each epoch.

    Args:
        training: batches to learn from.
        validation: batches to judge by.
        epochs: passes over the documents.
        options: of `iter_batches`.
    """
    model, losses = Bigrams(), []
    with training.iter_batches(epochs=epochs, **options) as batches:
        for epoch in range(epochs):
            learned = mean_loss(model, batches.one_epoch(), train=True)
            with validation.iter_batches(**options) as held_out:
                losses.append(mean_loss(model, held_out, train=False))
            print(f"epoch {epoch}: training {learned:.3f}, validation {losses[-1]:.3f}", flush=True)
        print(batches.report())
    return losses


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the example as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=f"{Path(os.__file__).parent}/*.py", help="files, a glob or a folder")
    parser.add_argument("--epochs", type=int, default=2, help="passes over the documents")
    parser.add_argument("--length", type=int, default=512, help="tokens in a row")
    parser.add_argument("--batch", type=int, default=16, help="rows in a batch")
    parser.add_argument("--local", type=int, help="workers on this node; without both, as many as are needed run")
    parser.add_argument("--remote", type=int, help="workers on other nodes")
    parser.add_argument("--debug", action="store_true", help="run in this very process, without Ray")
    args = parser.parse_args(arguments)
    training, validation = pipelines(args.data, length=args.length, batch=args.batch)
    workers = fixed_workers(args.local, args.remote)
    train_and_validate(training, validation, epochs=args.epochs, workers=workers, debug=args.debug)


if __name__ == "__main__":
    main()
