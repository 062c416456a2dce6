"""The steps of the ASRTransformer pipeline over NumPy.

The decoding, the Fourier transform and the vocabulary follow keras-io's example for LJSpeech.  The paper adds
SpecAugment, speed and pitch perturbation and reverberation *behind* the Fourier transform and the padding,
with parameters that it does not publish: those below are ours.  The augmentations take spectrograms with and
without padding, [frames, 129].
"""

from __future__ import annotations

import io
import wave
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]
Element: TypeAlias = dict[str, Any]

FRAME = 200
"""Samples in a frame,"""
STEP = 80
"""between the beginnings of two frames,"""
FFT = 256
"""and in the Fourier transform."""
FRAMES = 2754
TEXT_LENGTH = 200
VOCABULARY = ("-", "#", "<", ">", *"abcdefghijklmnopqrstuvwxyz", " ", ".", ",", "?")
"""34 symbols: padding, unknown, begin and end come first."""
FREQUENCY_MASK, TIME_MASK, MASKS = 27, 100, 2
SPEEDS = (0.9, 1.0, 1.1)
SEMITONES = 2.0
REVERB_FRAMES = (20.0, 100.0)
"""Bounds of the time in which an echo falls to a thousandth, in frames."""
REVERB_SHARE = 0.3
"""Bound on the share of the echo in the result."""


def read_file(element: Element) -> Element:
    """Read the WAV file that the column `path` names."""
    with open(element["path"], "rb") as file:
        return {**element, "audio": file.read()}


def decode(audio: bytes) -> Array:
    """Decode a WAV of 16 bits to float32 in [-1, 1); of several channels the first.

    Raises `ValueError` for other widths.
    """
    with wave.open(io.BytesIO(audio)) as file:
        if file.getsampwidth() != 2:
            raise ValueError(f"Expected a WAV of 16 bits a sample, but got {8 * file.getsampwidth()}.")
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        return samples[:: file.getnchannels()].astype(np.float32) / np.float32(32768.0)


def add_text(element: Element, transcripts: Mapping[str, str]) -> Element:
    """Add the transcript of the file, found by its name."""
    return {**element, "text": transcripts[element["path"].rsplit("/", 1)[-1]]}


def vectorize(element: Element) -> Element:
    """Replace the text by `target`, the numbers of its characters, 0 up to length 200; drop text and path."""
    numbers = {character: number for number, character in enumerate(VOCABULARY)}
    text = "<" + element["text"].lower()[: TEXT_LENGTH - 2] + ">"
    target = np.zeros(TEXT_LENGTH, np.int32)
    target[: len(text)] = [numbers.get(character, 1) for character in text]
    return {"audio": element["audio"], "target": target}


def fourier_transform(element: Element) -> Element:
    """Replace the audio by `source`: square roots of STFT magnitudes, standardised per frame, [frames, 129].

    Adds `frames`, their number: the augmentations need it to tell speech from padding.  A silent frame gives
    0 where the original divides 0 by 0.
    """
    audio = element["audio"]
    if len(audio) < FRAME:
        audio = np.pad(audio, (0, FRAME - len(audio)))
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FRAME) / FRAME)).astype(np.float32)
    frames = np.lib.stride_tricks.sliding_window_view(audio, FRAME)[::STEP] * window
    roots = np.sqrt(np.abs(np.fft.rfft(frames, FFT, axis=1))).astype(np.float32)
    deviations = np.maximum(roots.std(axis=1, keepdims=True), np.float32(1e-6))
    source = (roots - roots.mean(axis=1, keepdims=True)) / deviations
    return {"source": source, "target": element["target"], "frames": np.int32(len(source))}


def pad(element: Element) -> Element:
    """Pad with 0, or cut, to 2754 frames."""
    source = element["source"]
    padded = np.zeros((FRAMES, source.shape[1]), source.dtype)
    count = min(len(source), FRAMES)
    padded[:count] = source[:count]
    return {**element, "source": padded, "frames": np.int32(min(int(element["frames"]), FRAMES))}


def spec_augment(element: Element, rng: np.random.Generator) -> Element:
    """Put 2 bands of up to 27 frequencies and 2 stretches of up to 100 frames of speech to 0, the mean."""
    source, frames = element["source"].copy(), int(element["frames"])
    bins = source.shape[1]
    for _ in range(MASKS):
        width = int(rng.integers(FREQUENCY_MASK + 1))
        first = int(rng.integers(bins - width + 1))
        source[:, first : first + width] = 0.0
        # At most a fifth of the speech each: short clips must not vanish.
        length = int(rng.integers(min(TIME_MASK, frames // 5) + 1))
        first = int(rng.integers(frames - length + 1))
        source[first : first + length] = 0.0
    return {**element, "source": source}


def speed_perturb(element: Element, rng: np.random.Generator) -> Element:
    """Play the speech at 0.9, 1 or 1.1 times its speed, by interpolating frames; padding stays padding."""
    return change_speed(element, float(rng.choice(SPEEDS)))


def change_speed(element: Element, factor: float) -> Element:
    """Play the speech `factor` times as fast; a padded spectrogram keeps its length."""
    source, frames = element["source"], int(element["frames"])
    if factor == 1.0 or frames == 0:
        return element
    length = max(1, round(frames / factor))
    places = np.linspace(0.0, frames - 1, length)
    before = places.astype(np.int64)
    after = np.minimum(before + 1, frames - 1)
    share = (places - before).astype(np.float32)[:, np.newaxis]
    played = source[before] * (1 - share) + source[after] * share
    if len(source) > frames:
        length = min(length, len(source))
        out = np.zeros_like(source)
        out[:length] = played[:length]
        played = out
    return {**element, "source": played, "frames": np.int32(length)}


def pitch_perturb(source: Array, rng: np.random.Generator) -> Array:
    """Move the pitch by up to 2 semitones up or down: frequencies are interpolated."""
    return change_pitch(source, float(rng.uniform(-SEMITONES, SEMITONES)))


def change_pitch(source: Array, semitones: float) -> Array:
    """Give frequency f the value at f / 2^(semitones / 12), and 0 beyond the last one."""
    bins = source.shape[1]
    places = np.arange(bins) / 2 ** (semitones / 12)
    inside = places <= bins - 1
    before = np.minimum(places, bins - 1).astype(np.int64)
    after = np.minimum(before + 1, bins - 1)
    share = np.where(inside, places - before, 0.0).astype(np.float32)
    moved: Array = source[:, before] * (1 - share) + source[:, after] * share
    moved *= inside.astype(np.float32)
    return moved


def reverb(source: Array, rng: np.random.Generator) -> Array:
    """Mix an echo into each frequency, which decays exponentially over the following frames."""
    return add_echo(source, decay_frames=float(rng.uniform(*REVERB_FRAMES)), share=float(rng.uniform(0, REVERB_SHARE)))


def add_echo(source: Array, *, decay_frames: float, share: float) -> Array:
    """Mix `share` of an echo that falls to a thousandth within `decay_frames` into the source."""
    taps = 10.0 ** (-3.0 * np.arange(int(decay_frames) + 1) / decay_frames)
    taps = (taps / taps.sum()).astype(np.float32)
    size = len(source) + len(taps) - 1
    spectrum = np.fft.rfft(source, size, axis=0) * np.fft.rfft(taps, size)[:, np.newaxis]
    echo = np.fft.irfft(spectrum, size, axis=0)[: len(source)].astype(source.dtype)
    mixed: Array = (1 - np.float32(share)) * source + np.float32(share) * echo
    return mixed
