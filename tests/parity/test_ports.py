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

from pecan_ray.pipeline import PecanPipeline
from pecan_ray.sources import Arrays, Resampled, WebDataset

torch = pytest.importorskip("torch")
EPOCHS = 3
ROWS = 120
IMAGES = np.random.default_rng(0).integers(0, 255, (ROWS, 6, 6), np.uint8)
LABELS = np.arange(ROWS) % 6


class Photographs:
    """A map-style data set as programs have it."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        return {"image": torch.from_numpy(IMAGES[index]), "label": int(LABELS[index]), "index": int(index)}


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


def loaded(dataset: Any, sampler: EpochSampler, collate: Any = None) -> list[Any]:
    """Batches of a DataLoader, whose sampler is told the epoch as programs do it."""
    loader, found = torch.utils.data.DataLoader(dataset, batch_sampler=sampler, collate_fn=collate), []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        found += list(loader)
    return found


def ours(pipe: PecanPipeline, epochs: int = EPOCHS, **options: Any) -> list[dict[str, Any]]:
    return list(pipe.iter_batches(debug=True, order="strict", epochs=epochs, **options))


def ported(dataset: Any, draw: Callable[[int], Any], collate: Any = None) -> list[dict[str, Any]]:
    return ours(PecanPipeline.from_torch_dataset(dataset, batch_sampler=EpochSampler(draw), collate=collate))


def plain(batch: Any) -> Any:
    """A batch as values that can be compared, whatever holds them."""
    if isinstance(batch, dict):
        return {name: plain(one) for name, one in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [plain(one) for one in batch]
    return np.asarray(batch).tolist()


def p_by_k(epoch: int, p: int = 3, k: int = 4, batches: int = 8) -> list[Any]:
    rng = np.random.default_rng(epoch)
    chosen = [rng.choice(6, p, replace=False) for _ in range(batches)]
    return [
        np.concatenate([rng.choice(np.flatnonzero(one == LABELS), k, replace=False) for one in classes])
        for classes in chosen
    ]


def test_p_by_k_makes_the_batches_of_its_batch_sampler() -> None:
    found = ported(Photographs(), p_by_k)
    assert plain(found) == plain(loaded(Photographs(), EpochSampler(p_by_k)))
    assert all(sorted(Counter(batch["label"].tolist()).values()) == [4, 4, 4] for batch in found)


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


class Detection(Photographs):
    def __getitem__(self, index: int) -> dict[str, Any]:
        height, width = (4, 8) if WIDE[index] else (8, 4)
        image = np.full((height, width, 3), index, np.uint8)
        return {"image": image, "boxes": np.full((index % 4, 4), index, np.float32), "index": index}


def lists(elements: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {name: [element[name] for element in elements] for name in ("image", "boxes", "index")}


def test_detection_has_lists_of_images_of_one_aspect_ratio() -> None:
    found = ported(Detection(), by_aspect, lists)
    assert plain(found) == plain(loaded(Detection(), EpochSampler(by_aspect), lists))
    shuffled = PecanPipeline.from_torch_dataset(Detection(), shuffle=True, name="grouped")
    grouped = ours(shuffled.group_by(lambda element: element["image"].shape, 4, tail="merge", collate=lists))
    for batch in [*found, *grouped]:
        assert len({image.shape for image in batch["image"]}) == 1 and len(batch["index"]) == 4
    for epoch in range(EPOCHS):
        mine = grouped[30 * epoch : 30 * epoch + 30]
        assert sorted(index for batch in mine for index in batch["index"]) == list(range(ROWS))


WITHOUT = 1
"""Mosaics are off in so many last epochs."""


def four_each(epoch: int) -> list[list[int]]:
    rng = np.random.default_rng(epoch)
    return [[int(first), *rng.integers(0, ROWS, 3).tolist()] for first in rng.permutation(ROWS)]


def mosaic(images: Any, epoch: int) -> Any:
    if epoch >= EPOCHS - WITHOUT:
        return np.kron(images[0], np.ones((2, 2), np.uint8))
    return np.block([[images[0], images[1]], [images[2], images[3]]])


def test_mosaics_end_before_training_does() -> None:
    class Mosaics(Photographs):
        """As in YOLO: the data set combines four images, and is told when to stop."""

        epoch = 0

        def __getitem__(self, index: int) -> Any:
            return mosaic(IMAGES[four_each(self.epoch)[index]], self.epoch)

    dataset, theirs = Mosaics(), []
    for epoch in range(EPOCHS):
        dataset.epoch = epoch
        theirs += [{"image": batch} for batch in torch.utils.data.DataLoader(dataset, batch_size=10)]
    pipe = PecanPipeline(Arrays(image=IMAGES), batch_sampler=lambda epoch, seed: four_each(epoch), name="mosaic")
    found = ours(pipe.map(lambda element, epoch: {"image": mosaic(element["image"], epoch)}).batch(10))
    assert plain(found) == plain(theirs)


def test_open_clip_draws_shards_with_replacement_and_has_epochs_of_one_length(tmp_path: Path) -> None:
    for shard in range(5):
        with tarfile.open(tmp_path / f"{shard}.tar", "w") as archive:
            for sample in range(3 + shard):
                data = f"{shard}-{sample}".encode()
                info = tarfile.TarInfo(f"{sample:03}.txt")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    source = Resampled(WebDataset(str(tmp_path / "*.tar")), weights=[1, 1, 1, 1, 4])
    found = ours(PecanPipeline(source, name="clip", seed=5).repeat().batch(6), epoch_batches=10)
    texts = [bytes(text).decode() for batch in found for text in batch["txt"]]
    assert len(found) == 10 * EPOCHS and len(texts) == 60 * EPOCHS, "epochs have one length, whatever was drawn"
    epochs = [texts[start : start + 60] for start in range(0, 60 * EPOCHS, 60)]
    assert len(set(map(tuple, epochs))) == EPOCHS
    for mine in epochs:
        # open_clip's ResampledShards2 yields whole shards, one after the other, without end.
        while mine:
            drawn = mine[0].split("-")[0]
            whole = [f"{drawn}-{sample}" for sample in range(3 + int(drawn))]
            assert mine[: len(whole)] == whole[: len(mine)]
            mine = mine[len(whole) :]
    counts = Counter(int(text.split("-")[0]) for text in texts)
    draws = [counts[shard] / (3 + shard) for shard in range(5)]
    assert draws[4] > max(draws[:4]), "it weighs four times as much"


def test_fixmatch_has_a_labelled_part_beside_an_unlabelled_one_of_seven_times_its_size() -> None:
    size, ratio, steps = 2, 7, ROWS // 14

    def parts(epoch: int) -> tuple[list[list[int]], list[list[int]]]:
        rng = np.random.default_rng(epoch)
        labelled = rng.integers(0, 20, (steps, size)).tolist()
        return labelled, rng.permutation(ROWS)[: steps * size * ratio].reshape(steps, -1).tolist()

    def split(elements: Sequence[dict[str, Any]]) -> dict[str, Any]:
        images, labels = (np.array([one[name] for one in elements]) for name in ("image", "label"))
        return {"image": images[:size], "label": labels[:size], "weak": images[size:]}

    one = loaded(Photographs(), EpochSampler(lambda epoch: parts(epoch)[0]))
    other = loaded(Photographs(), EpochSampler(lambda epoch: parts(epoch)[1]))
    theirs = [
        {"image": labelled["image"], "label": labelled["label"], "weak": unlabelled["image"]}
        for labelled, unlabelled in zip(one, other, strict=True)
    ]
    found = ported(Photographs(), lambda epoch: [[*a, *b] for a, b in zip(*parts(epoch), strict=True)], split)
    assert plain(found) == plain(theirs) and len(found) == steps * EPOCHS
