"""Transforms of torchvision that are known: what they draw is drawn by them, and pixels are theirs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray import images
from pecan_ray.autoorder.explain import explain
from pecan_ray.autoorder.order import order_plan
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.autoorder.rewrites import EXACTLY, apply_rewrites
from pecan_ray.engines.in_process import run_in_process
from pecan_ray.known.detect_steps import steps_of
from pecan_ray.reorder import Mode
from tests.unit.autoorder.sampled_orders import gain
from tests.unit.known.known_functions import at_once, found, generators, import_torchvision, photograph, usual

import_torchvision()
torch = pytest.importorskip("torch")
v2 = pytest.importorskip("torchvision.transforms.v2")
image_class = pytest.importorskip("PIL.Image")

BILINEAR = v2.InterpolationMode.BILINEAR
TO_FLOATS = (v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
RUNS: dict[str, list[Any]] = {
    "training": [v2.ToImage(), v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), *TO_FLOATS],
    "evaluation": [v2.ToImage(), v2.Resize(256), v2.CenterCrop(224), *TO_FLOATS],
    "on images of Pillow": [image_class.fromarray, v2.RandomResizedCrop(99), v2.RandomHorizontalFlip(), v2.ToImage()],
    "crop": [v2.ToImage(), v2.RandomCrop(96), v2.RandomVerticalFlip()],
    "middle": [v2.ToImage(), v2.CenterCrop(201), v2.Resize(80), v2.RandomHorizontalFlip(1.0), v2.ToPureTensor()],
    "something else between": [v2.ToImage(), v2.RandomCrop(90), v2.ColorJitter(0.4), *TO_FLOATS],
    "turned": [
        v2.ToImage(),
        v2.RandomResizedCrop((150, 170)),
        v2.RandomHorizontalFlip(),
        v2.RandomVerticalFlip(),
        v2.RandomRotation(20, interpolation=BILINEAR),
        *TO_FLOATS,
    ],
    "affine": [
        v2.ToImage(),
        v2.Resize((200, 220)),
        v2.RandomAffine(9, translate=(0.1, 0.2), scale=(0.8, 1.2), shear=(-9, 9, -4, 4), interpolation=BILINEAR),
    ],
    "no geometry": [v2.ToImage(), *TO_FLOATS],
}
"""Transforms in a row."""
EQUAL = RUNS.keys() - {"affine", "evaluation", "no geometry"}
REDUCED = {"training", "evaluation", "on images of Pillow", "middle", "turned", "affine"}
PARTS: dict[str, Callable[[list[Any]], list[Any]]] = {
    "composed": lambda fns: [v2.Compose(fns)],
    "in a sequential": lambda fns: [fns[0], torch.nn.Sequential(*fns[1:])],
    "one by one": lambda fns: list(itertools.takewhile(steps_of, fns)),
}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("reduces", [False, True])
@pytest.mark.parametrize("parts", PARTS)
def test_the_same_numbers_are_drawn_and_the_same_comes_out(name: str, reduces: bool, parts: str) -> None:
    fns = PARTS[parts](RUNS[name])
    if name not in (REDUCED if reduces else EQUAL):
        assert found(fns, reduces=reduces) is None
        return
    encoded = photograph(400, 500)
    torch.manual_seed(0)
    expected, drawn = usual(fns, encoded, 0), torch.get_rng_state()
    torch.manual_seed(0)
    made = at_once(fns, reduces=reduces)(encoded, generators(0))
    assert torch.equal(torch.get_rng_state(), drawn)
    assert type(made) is type(expected)
    mine, theirs = np.asarray(made), np.asarray(expected)
    assert mine.shape == theirs.shape and mine.dtype == theirs.dtype
    assert not isinstance(made, torch.Tensor) or made.is_contiguous()
    apart = np.abs(mine.astype(float) - theirs).mean()
    assert apart <= (0.3 * theirs.std() if reduces else 0)


Louder = type("Louder", (v2.RandomResizedCrop,), {})
"""One that may do something else."""


def hooked() -> Any:
    """A transform that does more than its class."""
    crop = v2.RandomCrop(32)
    crop.register_forward_hook(lambda module, given, made: made * 2)
    return crop


def changed() -> Any:
    """A transform with a method of its own."""
    crop = v2.RandomCrop(32)
    crop.make_params = lambda flat_inputs: {"top": 0, "left": 0, "height": 1, "width": 1}
    return crop


@pytest.mark.parametrize(
    "fn",
    [
        Louder(32),
        hooked(),
        changed(),
        v2.RandomCrop(32, padding=4),
        v2.RandomResizedCrop(32, interpolation=v2.InterpolationMode.NEAREST),
        v2.RandomRotation(5),
        v2.RandomRotation(5, interpolation=BILINEAR, expand=True),
        v2.RandomAffine(5, interpolation=BILINEAR, center=[1, 2]),
        v2.ColorJitter(0.5),
    ],
)
def test_what_is_another_is_not_known(fn: Any) -> None:
    assert not any(found([v2.ToImage(), fn], reduces=reduces) for reduces in (False, True))
    # torchvision does nothing to arrays of NumPy: without `ToImage` a crop is none.
    assert not any(found([v2.RandomResizedCrop(32)], reduces=reduces) for reduces in (False, True))


def test_errors_are_those_of_the_transforms() -> None:
    small = photograph(40, 50)
    for fns in ([v2.ToImage(), v2.RandomCrop(64)], [v2.ToImage(), v2.CenterCrop(16), v2.Normalize([0.5], [0.0])]):
        with pytest.raises(Exception) as theirs:  # noqa: PT011  # it is compared with ours
            usual(fns, small, 0)
        with pytest.raises(type(theirs.value), match=r"larger than|float tensor|zero"):
            at_once([v2.Compose([*fns, *TO_FLOATS])], reduces=False)(small, generators(0))


@pytest.mark.parametrize("mode", ["strict", "safe"])
def test_autoorder_adopts_it_and_says_so(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pecan_ray.autoorder.trial.TAKEN_OVER_S", 60.0)
    items = [{"image": photograph(900, 1200, seed), "label": seed} for seed in range(12)]
    pipe = pecan.PecanPipeline(pecan.sources.Items(items), name="album").map(images.Decode(), on="image")
    pipe = pipe.map(v2.Compose(RUNS["training"]), on="image", name="augment").batch(4)
    gain(monkeypatch, 2.0)
    found = order_plan(OrderRequest(pipe.plan, "python", mode, seed=0, seconds=120.0, elements=12))
    assert found.decoders == (f"Decode+augment{EXACTLY * (mode == 'strict')}",)
    text = explain("album", found)
    assert "AutoOrder knows torchvision RandomResizedCrop (rule" in text
    assert ("'image': equal on" in text) == found.decoders[0].endswith(EXACTLY)
    plan, _ = apply_rewrites(found.plan, "python", found.decoders)
    assert [op.name for op in plan.ops] == ["augment", "batch"]
    (first, *_) = run_in_process(plan)
    assert first["image"].shape == (4, 3, 224, 224) and first["image"].dtype == np.float32
