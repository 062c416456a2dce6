"""Finishing images where their batch arrives: decoding them on an accelerator, cropping, resizing and mirroring there.

torchvision decodes on a CUDA device, many images at a time and on a stream of its own; PyTorch does the rest.  On the
CPU the decoder is that of `pecan_ray.images`, which also decodes an image that the accelerator's decoder refuses.

Pixels differ from those of `pecan_ray.images` by rounding (`MAX_DIFFERENCE`), and by what decoders differ.  They stay
on the device where the loop wants them there as they are.  Else they come back as an array of NumPy, so that batches
are what they are without an accelerator, in every format.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from pecan_ray.errors import CutError, MissingExtraError, PlanError, describe_error
from pecan_ray.images import decoded
from pecan_ray.known.encoded_images import EncodedImage, KeptPart, NewSize
from pecan_ray.part_decoding import Pixels

MAX_DIFFERENCE = 2
"""Levels of 255 by which a resized pixel may differ from OpenCV's, which resizes in fixed point: two of its roundings.
Measured on photographs, both with the same decoder."""
DECODED_AT_ONCE = 32
"""Images that are decoded together: as many of 12 megapixels take 1.2 GB of the accelerator's memory."""


def find_device(wanted: str | None) -> str:
    """Return the CUDA device of this process, "cpu" where it has none; `wanted`: where its batches go.

    Raises `MissingExtraError` where a library is missing.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError(
            "AutoWorkers(accelerator=...) decodes with PyTorch, which is not installed: pip install torch torchvision, "
            "or leave accelerator at False."
        )
    import torch

    device = torch.device(wanted or "cpu")
    if device.type != "cuda":
        if not torch.cuda.is_available():
            return "cpu"
        device = torch.device("cuda", torch.cuda.current_device())
    if importlib.util.find_spec("torchvision") is None:
        raise MissingExtraError(
            f"AutoWorkers(accelerator=...) decodes on {device} by torchvision, which is not installed: pip install "
            "torchvision, or leave accelerator at False."
        )
    return str(device)


def is_device(wanted: str | None, device: str) -> bool:
    """Tell whether batches go to the device on which images are finished; `wanted`: None is the CPU."""
    import torch

    there, here = torch.device(wanted or "cpu"), torch.device(device)
    # Without a number it is the process's current one, which `find_device` has taken.
    return there.type == here.type and there.index in (None, here.index)


class ImageFinisher:
    """Makes arrays of pixels of the images of a batch; any thread may call it."""

    def __init__(self, device: str) -> None:
        """`device`: one of PyTorch, which is imported with the first batch."""
        self._device = device
        self._streams = threading.local()
        """A stream of CUDA for each thread: the step's own stream waits for none of them."""

    def finish(self, packed: Sequence[bytes], *, stay: bool = False) -> Any:
        """Return the pixels of all images; raises `CutError` for one that no decoder here takes.

        `stay`: as a tensor of PyTorch on the device, which is complete; else as an array of NumPy.
        """
        images = [EncodedImage.unpacked(one) for one in packed]
        if len({image.size for image in images}) > 1:
            raise PlanError(f"images of a batch have different sizes: {sorted({image.size for image in images})}.")
        import torch

        shape, device = (len(images), *images[0].size, 3), self._device
        with self._stream() as stream:
            try:  # the step may have taken all of the accelerator's memory
                made = torch.empty(shape, dtype=torch.uint8, device=device if stay else "cpu")
                self._fill(made, images)
            except RuntimeError as error:
                raise CutError(f"images cannot be finished on {device}: {describe_error(error)}") from error
            if stay and stream is not None:
                stream.synchronize()
        return made if stay else made.numpy()

    def _fill(self, made: Any, images: Sequence[EncodedImage]) -> None:
        """Write the pixels of images into a tensor of all of them."""
        import torch

        encoded = list[int]()
        for row, image in enumerate(images):
            if image.steps is None:
                made[row] = torch.from_numpy(image.pixels.copy())
            else:
                encoded.append(row)
        for first in range(0, len(encoded), DECODED_AT_ONCE):
            rows = encoded[first : first + DECODED_AT_ONCE]
            made[rows] = self._finished([images[row] for row in rows]).to(made.device)

    def _stream(self) -> AbstractContextManager[Any]:
        """Return a context in which this thread's own stream is used, and which gives it; None on the CPU."""
        if not self._device.startswith("cuda"):
            return nullcontext()
        import torch

        cuda: Any = torch.cuda  # which has no types
        if not hasattr(self._streams, "own"):
            self._streams.own = cuda.Stream(self._device)
        return self._on(self._streams.own)

    @staticmethod
    @contextmanager
    def _on(stream: Any) -> Iterator[Any]:
        import torch

        cuda: Any = torch.cuda
        with cuda.stream(stream):
            yield stream

    def _finished(self, images: Sequence[EncodedImage]) -> Any:
        """Return the pixels of a few JPEGs behind their steps, on the device."""
        import torch

        rows = [_behind_steps(*both) for both in zip(self._decoded(images), images, strict=True)]
        return torch.stack(rows).permute(0, 2, 3, 1)

    def _decoded(self, images: Sequence[EncodedImage]) -> Iterator[Any]:
        """Yield images as tensors [3, height, width] on the device."""
        import torch

        found = self._by_accelerator(images) if self._device.startswith("cuda") else [None] * len(images)
        for tensor, image in zip(found, images, strict=True):
            if tensor is None or tuple(tensor.shape) != (3, *image.stored):
                tensor = torch.from_numpy(_by_cpu(image)).permute(2, 0, 1).to(self._device)
            yield tensor

    def _by_accelerator(self, images: Sequence[EncodedImage]) -> list[Any]:
        """Return tensors; None for an image that the accelerator's decoder refuses."""
        import torch
        from torchvision import io

        files = [torch.from_numpy(np.frombuffer(image.data, np.uint8).copy()) for image in images]
        try:
            return list(io.decode_jpeg(files, mode=io.ImageReadMode.RGB, device=self._device))
        except RuntimeError:
            # It does not say which one; alone each of the others succeeds.
            return [None] if len(images) == 1 else [self._by_accelerator([one])[0] for one in images]


def _by_cpu(image: EncodedImage) -> Pixels:
    try:
        pixels: Pixels = decoded(image.data)
    except Exception as error:  # OpenCV raises errors of its own
        raise CutError(f"an image cannot be decoded where its batch arrives: {describe_error(error)}") from error
    if pixels.shape[:2] != image.stored:
        raise CutError(f"an image is {pixels.shape[:2]} where its batch arrives, and its file says {image.stored}")
    return pixels


def _behind_steps(tensor: Any, image: EncodedImage) -> Any:
    """Return a tensor of bytes [3, height, width] behind the steps of its image."""
    import torch

    for step in image.steps or ():
        if isinstance(step, KeptPart):
            tensor = tensor[:, step.top : step.top + step.height, step.left : step.left + step.width]
        elif isinstance(step, NewSize):
            resized = torch.nn.functional.interpolate(tensor[None].float(), (step.height, step.width), mode="bilinear")
            tensor = resized[0].round_().clamp_(0, 255).to(torch.uint8)
        else:
            tensor = tensor.flip(2)
    return tensor
