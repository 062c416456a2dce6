"""Input pipelines of public training programs, beside what their own loader makes of the same data.

Each is written as its program has it, with DataLoader and torch's samplers, and once more as a pipeline: batches are
equal where the program fixes their order, and epochs hold equally many of each sample where it draws them.
"""

from __future__ import annotations

import io
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.sources import Resampled, WebDataset

torch = pytest.importorskip("torch")
EPOCHS = 3
ROWS = 120


class EpochSampler:
    """A batch sampler of torch's kind: `set_epoch` is called before each pass."""

    def __init__(self, draw: Callable[[int], Sequence[Sequence[int]]]) -> None:
        self.draw, self.epoch = draw, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.draw(self.epoch))

    def __iter__(self) -> Iterator[list[int]]:
        return (list(map(int, batch)) for batch in self.draw(self.epoch))


def ours(pipe: pecan.PecanPipeline, epochs: int = EPOCHS, **options: Any) -> list[dict[str, Any]]:
    return list(pipe.iter_batches(debug=True, order="strict", epochs=epochs, **options))


def plain(batch: Any) -> Any:
    """A batch as values that can be compared, whatever holds them."""
    if isinstance(batch, dict):
        return {name: plain(one) for name, one in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [plain(one) for one in batch]
    return np.asarray(batch).tolist()


WIDE = np.arange(ROWS) % 3 == 0
"""Images are of two aspect ratios."""


def by_aspect(epoch: int, size: int = 4) -> list[list[int]]:
    """Draw as torchvision's GroupedBatchSampler does: a batch is ready as soon as its group is full."""
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(epoch)).tolist()
    groups: dict[bool, list[int]] = {True: [], False: []}
    batches = []
    for index in order:
        group = groups[bool(WIDE[index])]
        group.append(index)
        if len(group) == size:
            batches.append(group.copy())
            group.clear()
    return batches


class Detection:
    """A map-style data set as programs have it."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> dict[str, Any]:
        height, width = (4, 8) if WIDE[index] else (8, 4)
        image = np.full((height, width, 3), index, np.uint8)
        return {"image": image, "boxes": np.full((index % 4, 4), index, np.float32), "index": index}


def lists(elements: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {name: [element[name] for element in elements] for name in ("image", "boxes", "index")}


def test_detection_has_lists_of_images_of_one_aspect_ratio() -> None:
    sampler, theirs = EpochSampler(by_aspect), []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        theirs += torch.utils.data.DataLoader(Detection(), batch_sampler=sampler, collate_fn=lists)
    found = ours(
        pecan.PecanPipeline.from_torch_dataset(
            Detection(), batch_sampler=EpochSampler(by_aspect), collate=lists, name="detection"
        )
    )
    assert plain(found) == plain(theirs)
    shuffled = pecan.PecanPipeline.from_torch_dataset(Detection(), shuffle=True, name="grouped")
    grouped = ours(shuffled.group_by(lambda element: element["image"].shape, 4, tail="merge", collate=lists))
    for batch in [*found, *grouped]:
        assert len({image.shape for image in batch["image"]}) == 1 and len(batch["index"]) == 4
    for epoch in range(EPOCHS):
        mine = grouped[30 * epoch : 30 * epoch + 30]
        assert sorted(index for batch in mine for index in batch["index"]) == list(range(ROWS))


def test_open_clip_draws_shards_with_replacement_and_has_epochs_of_one_length(tmp_path: Path) -> None:
    for shard in range(5):
        with tarfile.open(tmp_path / f"{shard}.tar", "w") as archive:
            for sample in range(3 + shard):
                data = f"{shard}-{sample}".encode()
                info = tarfile.TarInfo(f"{sample:03}.txt")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    source = Resampled(WebDataset(str(tmp_path / "*.tar")), weights=[1, 1, 1, 1, 4])
    pipe = pecan.PecanPipeline(source, name="clip", seed=5).repeat().batch(6)
    found = ours(pipe, epoch_batches=10)
    texts = [bytes(text).decode() for batch in found for text in batch["txt"]]
    assert len(found) == 10 * EPOCHS and len(texts) == 60 * EPOCHS, "epochs have one length, whatever was drawn"
    for epoch in range(EPOCHS):
        # open_clip's ResampledShards2 yields whole shards, one after the other, without end.
        mine = texts[60 * epoch : 60 * (epoch + 1)]
        while mine:
            drawn = mine[0].split("-")[0]
            whole = [f"{drawn}-{sample}" for sample in range(3 + int(drawn))]
            assert mine[: len(whole)] == whole[: len(mine)]
            mine = mine[len(whole) :]
    counts = Counter(int(text.split("-")[0]) for text in texts)
    assert len({tuple(texts[60 * epoch : 60 * epoch + 60]) for epoch in range(EPOCHS)}) == EPOCHS
    draws = [counts[shard] / (3 + shard) for shard in range(5)]
    assert draws[4] > max(draws[:4]), "it weighs four times as much"
