"""Eight trials of a search over hyperparameters at once: over one group of workers, and over pipelines of their own.

    python examples/hpo_sharing.py [--trials 8] [--epochs 2] [--photographs 256]

Optuna draws a learning rate for each trial; each trains a linear classifier on photographs (decode, random crop,
resize, flip, which costs far more than the training).  With `share=True` the trials read what one group makes, and each
batch is made once.  Prints the CPU seconds of all workers, and how long the trials took, of both.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import optuna

import pecan_ray as pecan
from examples import image_ops
from examples.photographs import derived_photographs

CLASSES, SIDE, BATCH = 10, 16, 16
TICK = os.sysconf("SC_CLK_TCK")


def shared_photographs(root: str) -> pecan.PecanPipeline:
    """Return the pipeline of all trials."""
    config = pecan.Config(reorder="off", share_linger_s=2.0)
    pipe = pecan.PecanPipeline(pecan.sources.ImageFolder(root, split_files=32), name="trials", config=config)
    pipe = pipe.map(image_ops.decode_and_random_crop, on="image").map(image_ops.resize, on="image")
    return pipe.map(image_ops.random_flip, on="image").batch(BATCH)


def train(pipe: pecan.PecanPipeline, rate: float, epochs: int, share: bool) -> float:
    """Train a linear classifier on small images; return its last loss."""
    weights, loss = np.zeros((SIDE * SIDE * 3, CLASSES), np.float32), 0.0
    one = pecan.Workers(local=1)  # what is compared is the work of one worker with that of one for each trial
    with pipe.iter_batches(epochs=epochs, share=share, workers=one) as batches:
        for batch in batches:
            images = batch["image"][:, :: 224 // SIDE, :: 224 // SIDE][:, :SIDE, :SIDE]
            x = images.reshape(len(images), -1).astype(np.float32) / 255.0
            scores = np.exp(x @ weights - (x @ weights).max(1, keepdims=True))
            shares = scores / scores.sum(1, keepdims=True)
            label = batch["label"].astype(int) % CLASSES
            loss = float(-np.log(shares[np.arange(len(x)), label] + 1e-9).mean())
            shares[np.arange(len(x)), label] -= 1
            weights -= rate * x.T @ shares / len(x)
    return loss


def search(pipe: pecan.PecanPipeline, trials: int, epochs: int, share: bool) -> list[float]:
    """Run trials at once; return how long each took."""
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))

    def run(trial: optuna.Trial) -> float:
        began = time.monotonic()
        study.tell(trial, train(pipe, trial.suggest_float("rate", 1e-4, 1e-1, log=True), epochs, share))
        return time.monotonic() - began

    with ThreadPoolExecutor(trials) as pool:
        seconds = list(pool.map(run, [study.ask() for _ in range(trials)]))
    print(f"  best learning rate {study.best_params['rate']:.5f}, with loss {study.best_value:.3f}")
    return seconds


def workers_cpu() -> dict[int, float]:
    """Return the CPU seconds of all preprocessing workers that live, by process."""
    found = {}
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and b"ray::PreprocessingWorker" in (folder / "cmdline").read_bytes():
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                found[int(folder.name)] = (int(fields[11]) + int(fields[12])) / TICK
        except OSError:  # it has ended meanwhile
            continue
    return found


def measured(run: Callable[[], list[float]]) -> tuple[list[float], float]:
    """Run something; return what it returns, and the CPU seconds of the workers that it has started."""
    seen, before = dict[int, float](), workers_cpu()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        while not running.done():
            seen |= workers_cpu()
            time.sleep(0.1)
    return running.result(), sum(seen.values()) - sum(before.values())


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--photographs", type=int, default=256)
    asked = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    import ray

    options: dict[str, Any] = {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": asked.trials}
    ray.init(namespace="pecan", log_to_driver=False, **options)  # room for as many workers as there are trials
    pipe = shared_photographs(str(derived_photographs(asked.photographs)))
    for share, name in ((True, "one shared group"), (False, f"{asked.trials} pipelines of their own")):
        seconds, cpu = measured(functools.partial(search, pipe, asked.trials, asked.epochs, share))
        print(
            f"{name}: {cpu:.1f} CPU seconds of workers, trials took {min(seconds):.1f} to {max(seconds):.1f} s, "
            f"{sum(seconds) / len(seconds):.1f} s on average",
            flush=True,
        )


if __name__ == "__main__":
    main()
