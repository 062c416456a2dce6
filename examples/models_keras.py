"""Small Keras models that train on the batches of the examples, on the CPU; each stands for a large one."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from examples.consumer import BatchColumns, TrainStep


def encoder(channels: int, width: int = 16) -> Any:
    """Return four strided convolutions that make one vector of ``8 * width`` numbers of an image."""
    layers: list[Any] = [keras.Input((224, 224, channels))]
    for out in (width, 2 * width, 4 * width, 8 * width):
        layers += [
            keras.layers.Conv2D(out, 3, strides=2, padding="same"),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
        ]
    return keras.Sequential([*layers, keras.layers.GlobalAveragePooling2D()])


def classifier_step(classes: int) -> TrainStep:
    """Return a step for batches of `image` [n, 224, 224, 3] and one-hot `label`."""
    model = keras.Sequential([encoder(3), keras.layers.Dense(classes)])
    model.compile(keras.optimizers.Adam(1e-3), keras.losses.CategoricalCrossentropy(from_logits=True))

    def step(batch: BatchColumns) -> float:
        loss = model.train_on_batch(np.asarray(batch["image"], np.float32) / 64.0, np.asarray(batch["label"]))
        return float(loss)

    return step


def simclr_step(temperature: float = 0.1) -> TrainStep:
    """Return a step for batches of `image` [n, 224, 224, 6], two views to be made alike (NT-Xent loss)."""
    model = keras.Sequential([encoder(3), keras.layers.Dense(64)])
    optimizer = keras.optimizers.Adam(1e-3)

    def step(batch: BatchColumns) -> float:
        images = tf.constant(np.asarray(batch["image"], np.float32))
        views = tf.concat([images[..., :3], images[..., 3:]], axis=0)
        count = images.shape[0]
        with tf.GradientTape() as tape:
            codes = tf.math.l2_normalize(model(views, training=True), axis=1)
            likeness = tf.matmul(codes, codes, transpose_b=True) / temperature
            likeness -= 1e9 * tf.eye(2 * count)
            other_view = tf.roll(tf.range(2 * count), count, axis=0)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(other_view, likeness))
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )
        return float(loss)

    return step
