"""One pipeline under the training loops of several libraries: a line to two numbers, learned by least squares.

python examples/frameworks.py torch
python examples/frameworks.py lightning
python examples/frameworks.py transformers
python examples/frameworks.py accelerate
python examples/frameworks.py jax
python examples/frameworks.py tensorflow
python examples/frameworks.py keras
python examples/frameworks.py asyncio
python examples/frameworks.py ray-train
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# A script finds only its own folder: pecan_ray in a checkout is above it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

import pecan_ray as pecan

EPOCHS = 5


def noisy(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Return a point beside the line y = 2 a - b, which differs in each epoch."""
    x = row["x"]
    return {"x": x, "y": np.float32(2 * x[0] - x[1] + 0.01 * rng.normal())}


def pipeline() -> pecan.PecanPipeline:
    """Return batches of `x` float32 [32, 2] and `y` float32 [32]."""
    x = np.random.default_rng(0).normal(size=(640, 2)).astype(np.float32)
    return pecan.PecanPipeline(pecan.sources.Arrays(x=x), name="line").map(noisy).shuffle(100).batch(32)


def with_torch(**options: Any) -> float:
    """Train by a loop of torch; return the last loss."""
    import torch

    model = torch.nn.Linear(2, 1)
    optimizer, loss = torch.optim.SGD(model.parameters(), 0.1), torch.zeros(())
    dataset = pipeline().to_torch(epochs=EPOCHS, device="cuda" if torch.cuda.is_available() else "cpu", **options)
    for _ in range(EPOCHS):
        for batch in dataset:
            loss = ((model(batch["x"])[:, 0] - batch["y"]) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return float(loss.detach())


def with_lightning(**options: Any) -> float:
    """Train by a trainer of Lightning, whose checkpoints would hold where the input stands; return the last loss."""
    import pytorch_lightning as pl
    import torch

    from pecan_ray.integrations import PecanDataModule

    class Line(pl.LightningModule):  # type: ignore[misc]  # mypy does not read Lightning's sources
        def __init__(self) -> None:
            super().__init__()
            self.model = torch.nn.Linear(2, 1)

        def training_step(self, batch: Any, _: int) -> Any:
            loss = ((self.model(batch["x"])[:, 0] - batch["y"]) ** 2).mean()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    trainer = pl.Trainer(max_epochs=EPOCHS, logger=False, enable_checkpointing=False, enable_progress_bar=False)
    trainer.fit(Line(), datamodule=PecanDataModule(pipeline(), options=options))
    return float(trainer.callback_metrics["loss"])


def with_transformers(**options: Any) -> float:
    """Train by a `Trainer` of Hugging Face, whose checkpoints hold where the input stands; return the last loss."""
    import tempfile

    import torch
    from transformers import TrainingArguments

    from pecan_ray.integrations import PecanTrainer

    class Line(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = torch.nn.Linear(2, 1)

        def forward(self, x: Any, y: Any) -> dict[str, Any]:
            return {"loss": ((self.model(x)[:, 0] - y) ** 2).mean()}

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, num_train_epochs=EPOCHS, optim="sgd", learning_rate=0.2, logging_steps=5, report_to=[]
        )
        trainer = PecanTrainer(Line(), arguments, train_dataset=pipeline(), options=options)
        trainer.train()
    return float([line["loss"] for line in trainer.state.log_history if "loss" in line][-1])


def with_accelerate(**options: Any) -> float:
    """Train by Hugging Face's accelerate, in as many processes as `accelerate launch` has; return the last loss."""
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator()
    if accelerator.num_processes > 1:
        options = {**options, "rank": accelerator.process_index, "world_size": accelerator.num_processes}
    # The loader is not prepared: each process has its own batches already, on its device.
    data = pipeline().to_torch(epochs=EPOCHS, device=accelerator.device, **options)
    accelerator.register_for_checkpointing(data)  # `accelerator.save_state()` saves where it stands
    line = torch.nn.Linear(2, 1)
    model, optimizer = accelerator.prepare(line, torch.optim.SGD(line.parameters(), 0.1))
    loss = torch.zeros(())
    for _ in range(EPOCHS):
        for batch in data:
            loss = ((model(batch["x"])[:, 0] - batch["y"]) ** 2).mean()
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
    return float(loss.detach())


def with_jax(**options: Any) -> float:
    """Train by JAX, on a mesh of all devices, each of which holds its part of every batch; return the last loss."""
    import jax

    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))

    def squares(weights: Any, batch: Any) -> Any:
        return ((batch["x"] @ weights - batch["y"]) ** 2).mean()

    step = jax.jit(jax.value_and_grad(squares))
    weights, loss = jax.numpy.zeros(2), jax.numpy.zeros(())
    for batch in pipeline().iter_batches(epochs=EPOCHS, format="jax", sharding=rows, **options):
        loss, gradient = step(weights, batch)
        weights -= 0.1 * gradient
    return float(loss)


def with_tensorflow(**options: Any) -> float:
    """Train by a loop of TensorFlow; return the last loss."""
    import tensorflow as tf

    weights, loss = tf.Variable([0.0, 0.0]), tf.zeros(())
    dataset = pipeline().to_tf_dataset(epochs=EPOCHS, **options)
    for batch in dataset.repeat(EPOCHS):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(batch["x"], weights) - batch["y"]) ** 2)
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
    return float(loss)


def with_keras(**options: Any) -> float:
    """Train by Keras' `fit`; return the last loss."""
    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    batches = pipeline().to_keras("x", "y", epochs=EPOCHS, **options)
    return float(model.fit(batches, epochs=EPOCHS, verbose=0).history["loss"][-1])


def with_asyncio(**options: Any) -> float:
    """Train in a coroutine, by NumPy; return the last loss."""

    async def train() -> float:
        weights, loss = np.zeros(2), 0.0
        async with pipeline().iter_batches_async(epochs=EPOCHS, **options) as batches:
            async for batch in batches:
                error = batch["x"] @ weights - batch["y"]
                loss = float((error**2).mean())
                weights -= 0.2 * batch["x"].T @ error / len(error)
        return loss

    return asyncio.run(train())


def with_ray_train(**options: Any) -> float:
    """Train by two workers of Ray Train, which share one job; return the last loss of one."""
    import ray.train
    from ray.train.torch import TorchTrainer, prepare_model

    from pecan_ray.integrations import PecanDataConfig

    def loop() -> None:
        import torch

        model = prepare_model(torch.nn.Linear(2, 1))
        optimizer, loss = torch.optim.SGD(model.parameters(), 0.1), torch.zeros(())
        shard: Any = ray.train.get_dataset_shard("train")
        for _ in range(EPOCHS):
            for batch in shard.iter_torch_batches():
                loss = ((model(batch["x"])[:, 0] - batch["y"]) ** 2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            ray.train.report({"loss": float(loss.detach())})

    datasets: Any = {"train": pipeline()}
    trainer = TorchTrainer(
        loop,
        datasets=datasets,
        dataset_config=PecanDataConfig(epochs=EPOCHS, options={"train": options}),
        scaling_config=ray.train.ScalingConfig(num_workers=2),
    )
    metrics = trainer.fit().metrics
    return float(metrics["loss"]) if metrics else float("nan")


LOOPS: dict[str, Callable[..., float]] = {
    "torch": with_torch,
    "lightning": with_lightning,
    "transformers": with_transformers,
    "accelerate": with_accelerate,
    "jax": with_jax,
    "tensorflow": with_tensorflow,
    "keras": with_keras,
    "asyncio": with_asyncio,
    "ray-train": with_ray_train,
}


def main() -> None:
    """Run the loop that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", choices=LOOPS)
    parser.add_argument("--local", type=int, help="workers of pecan_ray on this node; else as many as are needed")
    args = parser.parse_args()
    workers = None if args.local is None else pecan.Workers(local=args.local)
    print(f"last loss: {LOOPS[args.library](workers=workers):.5f}")


if __name__ == "__main__":
    main()
