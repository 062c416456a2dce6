"""Decoders of recordings and films, for `map` and `flat_map`; each needs a library of its own.

pipe = pecan.PecanPipeline(pecan.sources.AudioFolder("clips")).map(pecan.media.DecodeAudio(), on="audio")
pipe = pecan.PecanPipeline(pecan.sources.Files("films")).flat_map(pecan.media.VideoFrames(every=10))
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pecan_ray.errors import PlanError
from pecan_ray.sources.libraries import library

__all__ = ["DecodeAudio", "VideoFrames"]


@dataclass(frozen=True)
class DecodeAudio:
    """Encoded recording to a dict: samples (float32 [frames, channels], from -1 to 1) and rate (frames a second).

    It needs soundfile (``pip install 'pecan_ray[audio]'``).  Raises ValueError for what soundfile cannot read.
    """

    mono: bool = False
    """The mean of all channels: samples are [frames]."""

    def __call__(self, encoded: bytes) -> dict[str, Any]:
        """Decode a recording."""
        soundfile = library("soundfile", "media.DecodeAudio", "audio")
        try:
            samples, rate = soundfile.read(io.BytesIO(encoded), dtype="float32", always_2d=True)
        except soundfile.LibsndfileError as error:
            raise ValueError(f"these {len(encoded)} bytes are no recording that soundfile can read: {error}") from error
        return {"samples": samples.mean(axis=1) if self.mono else samples, "rate": int(rate)}


@dataclass(frozen=True)
class VideoFrames:
    """Elements with an encoded film to one element for each frame: frame (uint8 RGB [height, width, 3]) and time_s.

    Other columns are those of the film.  It needs PyAV (``pip install 'pecan_ray[video]'``).  Raises ValueError for
    bytes without a film.
    """

    column: str = "content"
    """It holds the encoded film, and is left out of the frames."""
    every: int = 1
    """One of so many frames is given, beginning with the first one."""
    most: int | None = None
    """Most frames; None: all."""

    def __post_init__(self) -> None:
        for name, value in (("every", self.every), ("most", self.most)):
            if (value is not None or name == "every") and (not isinstance(value, int) or value < 1):
                raise PlanError(f"VideoFrames({name}=...) must be a positive integer, but got {value!r}.")

    def __call__(self, element: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the frames of a film."""
        av = library("av", "media.VideoFrames", "video")
        others = {name: value for name, value in element.items() if name != self.column}
        try:
            with av.open(io.BytesIO(element[self.column])) as film:
                if not film.streams.video:
                    raise ValueError(f"column {self.column!r} holds no film")
                for number, frame in enumerate(film.decode(video=0)):
                    if self.most is not None and number >= self.most * self.every:
                        return
                    if number % self.every == 0:
                        yield {**others, "frame": frame.to_ndarray(format="rgb24"), "time_s": frame.time}
        except av.FFmpegError as error:
            raise ValueError(f"column {self.column!r} holds no film that PyAV can decode: {error}") from error
