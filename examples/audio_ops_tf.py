"""The steps of the ASRTransformer pipeline as TensorFlow graphs, for ``engine="tensorflow"``.

Names, shapes and distributions are those of `examples.audio_ops`; random numbers come from the stateless seed.  No step
needs AutoGraph, which could not find its source on a worker.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import tensorflow as tf

from examples.audio_ops import (
    FFT,
    FRAME,
    FRAMES,
    FREQUENCY_MASK,
    MASKS,
    REVERB_FRAMES,
    REVERB_SHARE,
    SEMITONES,
    SPEEDS,
    STEP,
    TEXT_LENGTH,
    TIME_MASK,
    VOCABULARY,
)

Tensor: TypeAlias = Any
Element: TypeAlias = dict[str, Any]


def _seeds(seed: Tensor, count: int) -> list[Tensor]:
    return list(tf.unstack(tf.random.experimental.stateless_split(seed, count), count))


def _below(seed: Tensor, end: Tensor) -> Tensor:
    """Draw one of the numbers 0 to `end` - 1."""
    return tf.random.stateless_uniform([], seed, 0, end, tf.int32)


def read_file(element: Element) -> Element:
    """Read the WAV file that the column `path` names."""
    return {**element, "audio": tf.io.read_file(element["path"])}


def decode(audio: Tensor) -> Tensor:
    """Decode a WAV of 16 bits to float32 in [-1, 1); of several channels the first."""
    samples, _ = tf.audio.decode_wav(audio)
    return samples[:, 0]


def add_text(element: Element, transcripts: Mapping[str, str]) -> Element:
    """Add the transcript of the file, found by its name."""
    name = tf.strings.split(element["path"], "/")[-1]
    place = tf.where(tf.constant(list(transcripts)) == name)[0, 0]
    return {**element, "text": tf.constant(list(transcripts.values()))[place]}


def vectorize(element: Element) -> Element:
    """Replace the text by `target`, the numbers of its characters, 0 up to length 200; drop text and path."""
    text = tf.strings.lower(element["text"], encoding="utf-8")
    text = "<" + tf.strings.substr(text, 0, TEXT_LENGTH - 2, unit="UTF8_CHAR") + ">"
    known = tf.strings.unicode_split(text, "UTF-8")[:, tf.newaxis] == tf.constant(VOCABULARY)
    numbers = tf.where(tf.reduce_any(known, 1), tf.argmax(tf.cast(known, tf.int32), 1, tf.int32), 1)
    target = tf.pad(numbers, [[0, TEXT_LENGTH - tf.shape(numbers)[0]]])
    return {"audio": element["audio"], "target": tf.ensure_shape(target, [TEXT_LENGTH])}


def fourier_transform(element: Element) -> Element:
    """Replace the audio by `source`, [frames, 129], and add `frames`; see `examples.audio_ops.fourier_transform`."""
    audio = element["audio"]
    audio = tf.pad(audio, [[0, tf.maximum(0, FRAME - tf.shape(audio)[0])]])
    window = tf.signal.hann_window(FRAME, periodic=True)
    roots = tf.sqrt(tf.abs(tf.signal.rfft(tf.signal.frame(audio, FRAME, STEP) * window, [FFT])))
    deviations = tf.maximum(tf.math.reduce_std(roots, 1, keepdims=True), 1e-6)
    source = (roots - tf.reduce_mean(roots, 1, keepdims=True)) / deviations
    return {"source": source, "target": element["target"], "frames": tf.shape(source)[0]}


def pad(element: Element) -> Element:
    """Pad with 0, or cut, to 2754 frames."""
    source = element["source"][:FRAMES]
    padded = tf.pad(source, [[0, FRAMES - tf.shape(source)[0]], [0, 0]])
    padded = tf.ensure_shape(padded, [FRAMES, FFT // 2 + 1])
    return {**element, "source": padded, "frames": tf.minimum(element["frames"], FRAMES)}


def spec_augment(element: Element, rng: Tensor) -> Element:
    """Put 2 bands of up to 27 frequencies and 2 stretches of up to 100 frames of speech to 0, the mean."""
    source, frames = element["source"], element["frames"]
    bins = FFT // 2 + 1
    for seed in _seeds(rng, MASKS):
        of_width, of_band, of_length, of_stretch = _seeds(seed, 4)
        width = _below(of_width, FREQUENCY_MASK + 1)
        source *= _outside(bins, _below(of_band, bins - width + 1), width)[tf.newaxis]
        length = _below(of_length, tf.minimum(TIME_MASK, frames // 5) + 1)
        source *= _outside(tf.shape(source)[0], _below(of_stretch, frames - length + 1), length)[:, tf.newaxis]
    return {**element, "source": source}


def _outside(size: Tensor, first: Tensor, length: Tensor) -> Tensor:
    """Return 0 for a stretch of `size` places and 1 for the others."""
    places = tf.range(size)
    return tf.cast((places < first) | (places >= first + length), tf.float32)


def speed_perturb(element: Element, rng: Tensor) -> Element:
    """Play the speech at 0.9, 1 or 1.1 times its speed, by interpolating frames; padding stays padding."""
    return change_speed(element, tf.constant(SPEEDS)[_below(rng, len(SPEEDS))])


def change_speed(element: Element, factor: Tensor) -> Element:
    """Play the speech `factor` times as fast; a padded spectrogram keeps its length."""
    source, frames = element["source"], element["frames"]
    size = tf.shape(source)[0]
    length = tf.maximum(1, tf.cast(tf.round(tf.cast(frames, tf.float32) / factor), tf.int32))
    places = tf.linspace(0.0, tf.cast(frames - 1, tf.float32), length)
    before = tf.cast(places, tf.int32)
    after = tf.minimum(before + 1, frames - 1)
    share = (places - tf.cast(before, tf.float32))[:, tf.newaxis]
    played = tf.gather(source, before) * (1.0 - share) + tf.gather(source, after) * share
    kept = tf.where(size > frames, tf.minimum(length, size), length)
    behind = tf.where(size > frames, size - kept, 0)
    played = tf.pad(played[:kept], [[0, behind], [0, 0]])
    if source.shape[0] == FRAMES:
        played = tf.ensure_shape(played, source.shape)
    return {**element, "source": played, "frames": kept}


def pitch_perturb(source: Tensor, rng: Tensor) -> Tensor:
    """Move the pitch by up to 2 semitones up or down: frequencies are interpolated."""
    return change_pitch(source, tf.random.stateless_uniform([], rng, -SEMITONES, SEMITONES))


def change_pitch(source: Tensor, semitones: Tensor) -> Tensor:
    """Give frequency f the value at f / 2^(semitones / 12), and 0 beyond the last one."""
    bins = FFT // 2 + 1
    places = tf.range(bins, dtype=tf.float32) / tf.pow(2.0, semitones / 12.0)
    inside = tf.cast(places <= bins - 1, tf.float32)
    before = tf.cast(tf.minimum(places, bins - 1.0), tf.int32)
    after = tf.minimum(before + 1, bins - 1)
    share = (places - tf.cast(before, tf.float32)) * inside
    moved = tf.gather(source, before, axis=1) * (1.0 - share) + tf.gather(source, after, axis=1) * share
    return moved * inside


def reverb(source: Tensor, rng: Tensor) -> Tensor:
    """Mix an echo into each frequency, which decays exponentially over the following frames."""
    decay, share = _seeds(rng, 2)
    return add_echo(
        source,
        decay_frames=tf.random.stateless_uniform([], decay, *REVERB_FRAMES),
        share=tf.random.stateless_uniform([], share, 0.0, REVERB_SHARE),
    )


def add_echo(source: Tensor, *, decay_frames: Tensor, share: Tensor) -> Tensor:
    """Mix `share` of an echo that falls to a thousandth within `decay_frames` into the source."""
    frames = tf.shape(source)[0]
    taps = tf.exp(-3.0 * math.log(10.0) * tf.range(tf.floor(decay_frames) + 1.0) / decay_frames)
    # A length of small factors: the Fourier transform of a large prime takes many times as long.
    size = 256 * -(-(frames + tf.shape(taps)[0]) // 256)
    spectrum = tf.signal.rfft(tf.transpose(source), [size]) * tf.signal.rfft(taps / tf.reduce_sum(taps), [size])
    echo = tf.transpose(tf.signal.irfft(spectrum, [size])[:, :frames])
    return (1.0 - share) * source + share * echo
