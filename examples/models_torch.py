"""Small torch models that train on the batches of the examples, on the CPU; each stands for a large one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.boxes_ops import LEVELS
from examples.consumer import BatchColumns, TrainStep


def encoder(channels: int, width: int = 16) -> nn.Sequential:
    """Return four strided convolutions that make one vector of ``8 * width`` numbers of an image."""
    layers: list[nn.Module] = []
    for out in (width, 2 * width, 4 * width, 8 * width):
        layers += [nn.Conv2d(channels, out, 3, stride=2, padding=1), nn.BatchNorm2d(out), nn.ReLU()]
        channels = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def classifier_step(classes: int) -> TrainStep:
    """Return a step for batches of `image` [n, 224, 224, 3] and one-hot `label`."""
    model = nn.Sequential(encoder(3), nn.Linear(128, classes))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def step(batch: BatchColumns) -> float:
        images = _channels_first(batch["image"]) / 64.0
        return _update_from(optimizer, functional.cross_entropy(model(images), _float(batch["label"])))

    return step


def simclr_step(temperature: float = 0.1) -> TrainStep:
    """Return a step for batches of `image` [n, 224, 224, 6], two views to be made alike (NT-Xent loss)."""
    model = nn.Sequential(encoder(3), nn.Linear(128, 64))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def step(batch: BatchColumns) -> float:
        images = _channels_first(batch["image"])
        views = torch.cat([images[:, :3], images[:, 3:]])
        codes = functional.normalize(model(views), dim=1)
        count = len(images)
        likeness = codes @ codes.T / temperature
        likeness = likeness.masked_fill(torch.eye(2 * count, dtype=torch.bool), float("-inf"))
        other_view = torch.arange(2 * count).roll(count)
        return _update_from(optimizer, functional.cross_entropy(likeness, other_view))

    return step


class Detector(nn.Module):
    """One-stage detector: for each level 3 to 7, whether an anchor holds an object, and where."""

    def __init__(self, width: int = 16, anchors: int = 9) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            *[
                nn.Sequential(nn.Conv2d(3 if i == 0 else width, width, 3, stride=2, padding=1), nn.ReLU())
                for i in range(2)
            ]
        )
        self.stages = nn.ModuleList(
            [nn.Sequential(nn.Conv2d(width, width, 3, stride=2, padding=1), nn.ReLU()) for _ in LEVELS]
        )
        self.objects = nn.Conv2d(width, anchors, 3, padding=1)
        self.boxes = nn.Conv2d(width, 4 * anchors, 3, padding=1)
        nn.init.constant_(self.objects.bias, -4.0)  # type: ignore[arg-type]  # a Conv2d with bias has one

    def forward(self, images: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return logits and box shifts of each level, channels last."""
        features = self.stem(images)
        out = []
        for stage in self.stages:
            features = stage(features)
            out.append((self.objects(features).permute(0, 2, 3, 1), self.boxes(features).permute(0, 2, 3, 1)))
        return out


def detector_step() -> TrainStep:
    """Return a step for the batches of the RetinaNet pipeline: focal loss on object or none, L1 on boxes."""
    model = Detector()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def step(batch: BatchColumns) -> float:
        loss = torch.zeros(())
        for level, (logits, shifts) in zip(LEVELS, model(_channels_first(batch["image"])), strict=True):
            objects = torch.from_numpy(batch[f"class_targets_{level}"] > 0).float()
            chance = functional.binary_cross_entropy_with_logits(logits, objects, reduction="none")
            focal = (1 - torch.exp(-chance)) ** 2 * chance
            away = (shifts - _float(batch[f"box_targets_{level}"])).abs() * objects.repeat_interleave(4, dim=-1)
            loss = loss + focal.sum() + away.sum()
        return _update_from(optimizer, loss / max(1.0, float(batch["num_positives"].sum())))

    return step


class Transcriber(nn.Module):
    """Transformer from spectrogram to characters, behind three strided convolutions as in keras-io."""

    def __init__(self, symbols: int = 34, width: int = 64, bins: int = 129) -> None:
        super().__init__()
        self.listen = nn.Sequential(
            *[
                nn.Sequential(nn.Conv1d(bins if i == 0 else width, width, 11, stride=2, padding=5), nn.ReLU())
                for i in range(3)
            ]
        )
        self.symbols = nn.Embedding(symbols, width)
        self.row_range = nn.Embedding(200, width)
        self.transformer = nn.Transformer(
            width, nhead=2, num_encoder_layers=1, num_decoder_layers=1, dim_feedforward=128, batch_first=True
        )
        self.out = nn.Linear(width, symbols)

    def forward(self, source: Tensor, text: Tensor) -> Tensor:
        """Return the logits of the symbol that follows each of `text`."""
        heard = self.listen(source.transpose(1, 2)).transpose(1, 2)
        known = self.symbols(text) + self.row_range(torch.arange(text.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        logits: Tensor = self.out(self.transformer(heard, known, tgt_mask=mask, tgt_is_causal=True))
        return logits


def transcriber_step() -> TrainStep:
    """Return a step for batches of `source` [n, 2754, 129] and `target` [n, 200]."""
    model = Transcriber()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def step(batch: BatchColumns) -> float:
        target = torch.from_numpy(batch["target"]).long()
        logits = model(_float(batch["source"]), target[:, :-1])
        return _update_from(
            optimizer, functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=0)
        )

    return step


def _update_from(optimizer: torch.optim.Optimizer, loss: Tensor) -> float:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
    optimizer.step()
    return float(loss.detach())


def _float(column: Any) -> Tensor:
    # A copy: the batch's memory may be reused, and torch knows no NumPy bfloat16.
    return torch.from_numpy(np.array(column, np.float32))


def _channels_first(images: Any) -> Tensor:
    return _float(images).permute(0, 3, 1, 2).contiguous()
