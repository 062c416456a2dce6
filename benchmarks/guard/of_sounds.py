"""Exchanges of operators on sounds and their spectra, with NumPy, SciPy and, where it is installed, librosa."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks.guard.exchange import Exchange, ExchangeKind, on_audio, on_element
from benchmarks.guard.ops import GuardStep

RATE = 16000
LENGTH = 12000
"""Three quarters of a second: some sounds are shorter, most are longer."""
HOP = 128


def _fixed(x: Any) -> Any:
    return np.pad(x[:LENGTH], (0, max(0, LENGTH - len(x))))


FIXED = on_audio("fixed_length", _fixed)
GAIN = on_audio("gain", lambda x, rng: x * np.float32(rng.uniform(0.6, 1.4)), random=True)
PEAK = on_audio("peak", lambda x: x / max(float(np.abs(x).max()), 1e-6))
SMOOTHED = on_audio("smoothed", lambda x: np.convolve(x, np.ones(5, np.float32) / 5, "same").astype(np.float32))
HISS = on_audio("hiss", lambda x, rng: x + rng.normal(0, 0.003, len(x)).astype(np.float32), random=True)
SECOND = on_audio("every_second", lambda x: x[::2].copy())
INT16 = on_audio("int16", lambda x: (x * 32767).astype(np.int16))
EMPHASIS = on_audio("emphasis", lambda x: np.append(x[:1], x[1:] - np.float32(0.97) * x[:-1]).astype(x.dtype))
BEHIND_PEAK = ExchangeKind("sound of peak 1", before=(FIXED, PEAK))
FITTED = ExchangeKind("sound of a length", before=(FIXED,))
LONG = ExchangeKind("sound", second=FIXED)


def _spectrum(x: Any) -> Any:
    frames = np.lib.stride_tricks.sliding_window_view(x, 256)[::HOP] * np.hanning(256)
    return np.abs(np.fft.rfft(frames)).astype(np.float32)


def _mask_bands(x: Any, rng: Any) -> Any:
    first, out = int(rng.integers(0, 70)), x.copy()
    out[:, first : first + 10] = 0
    return out


def _mask_times(x: Any, rng: Any) -> Any:
    first, out = int(rng.integers(0, len(x) - 12)), x.copy()
    out[first : first + 12] = 0
    return out


DECIBELS = on_audio("decibels", lambda x: np.log(x + np.float32(1e-3)))
BANDS = on_audio("low_bands", lambda x: x[:, :80].copy())
FRAMES = on_audio("fifty_frames", lambda x: np.resize(x, (max(50, len(x)), x.shape[1]))[:50].copy())
MASKED_BANDS = on_audio("masked_bands", _mask_bands, random=True)
MASKED_TIMES = on_audio("masked_times", _mask_times, random=True)
SPECTRA = ExchangeKind("spectrum", before=(FIXED, on_audio("spectrum", _spectrum)))


def exchanges() -> Iterator[Exchange]:
    """Yield all of this file."""
    yield from _to_a_length()
    yield from _of_levels()
    yield from _of_spectra()
    if find_spec("librosa") is not None:
        yield from _of_librosa()


def _to_a_length() -> Iterator[Exchange]:
    yield LONG.exchange("harmless", GAIN, "a gain is the same for each sample")
    yield LONG.exchange("harmless", SMOOTHED, "five samples at the end alone")
    yield LONG.exchange("harmless", EMPHASIS, "each sample depends on the one before it alone")
    yield LONG.exchange("harmful", HISS, "the silence that is padded hisses")
    yield LONG.exchange("harmful", PEAK, "where the loudest part is cut off, the peak is no longer 1")
    for name, fn, why in (
        ("trimmed", _trim, "silence is trimmed off the cut sound, not off the whole: less speech is left"),
        ("reversed", lambda x: x[::-1].copy(), "the other end of the sound is cut off"),
        ("faded_out", lambda x: x * np.linspace(1, 0, len(x), dtype=np.float32), "it fades within another time"),
        ("faster", lambda x: np.interp(np.arange(0, len(x), 1.25), np.arange(len(x)), x).astype(np.float32),
         "a quarter more silence, and a quarter less speech"),
        ("rolled", lambda x: np.roll(x, 4000), "another quarter of the sound is cut off"),
        ("without_silence", lambda x: x[np.abs(x) > 0.002], "speech is cut off that silence had made room for"),
    ):  # fmt: skip
        yield LONG.exchange("harmful", on_audio(name, fn), why)
    record = on_element("seconds", lambda e: {**e, "seconds": len(e["audio"]) / RATE, "audio": e["audio"] * 0.5})
    yield LONG.exchange("harmful", record, "the length that is recorded is that of the padded sound")
    snr = on_audio("noise_20_db", _noise_20_db, random=True)
    yield LONG.exchange("doubtful", snr, "the noise is 20 dB below the whole sound or below its first second")


def _trim(x: Any) -> Any:
    loud = np.flatnonzero(np.abs(x) > 0.02)
    return x[loud[0] : loud[-1] + 1].copy() if len(loud) else x[:1].copy()


def _noise_20_db(x: Any, rng: Any) -> Any:
    return (x + rng.normal(0, 0.1 * float(x.std()) + 1e-9, len(x))).astype(np.float32)


def _of_levels() -> Iterator[Exchange]:
    yield FITTED.exchange("harmless", GAIN, "both are linear", second=SMOOTHED)
    yield FITTED.exchange("harmless", on_audio("without_mean", lambda x: x - x.mean()), "both are linear", second=GAIN)
    fade = on_audio("fade", lambda x: x * np.linspace(1, 0.2, len(x), dtype=np.float32))
    slower = on_audio("slower", lambda x: np.interp(np.arange(0, len(x), 0.5), np.arange(len(x)), x).astype(np.float32))
    yield FITTED.exchange("harmless", fade, "it fades over the whole sound in both orders", second=slower)
    snr = on_audio("noise_20_db", _noise_20_db, random=True)
    yield FITTED.exchange("harmless", snr, "the noise is as strong as the sound says", second=GAIN)
    yield FITTED.exchange("harmless", EMPHASIS, "both are linear", second=GAIN)
    yield FITTED.exchange("harmful", HISS, "the noise is no longer louder where the sound is", second=GAIN)
    yield FITTED.exchange("harmful", GAIN, "the peak is no longer 1", second=PEAK)
    quieter = on_audio("quieter", lambda x: x * x.dtype.type(0.25))
    yield BEHIND_PEAK.exchange("harmful", quieter, "0.25 is 0 for integers", second=INT16)
    half = on_audio("half", lambda x: x * np.float32(0.5))
    clip_range = on_audio("clipped", lambda x: np.clip(x, -0.3, 0.3))
    yield BEHIND_PEAK.exchange("harmful", clip_range, "less is clipped of a quieter sound", second=half)
    yield BEHIND_PEAK.exchange("harmful", on_audio("mu_law", _mu_law), "its curve bends other values", second=half)
    gate = on_audio("gate", lambda x: np.where(np.abs(x) > 0.05, x, 0).astype(x.dtype))
    yield BEHIND_PEAK.exchange("harmful", gate, "twice as much becomes silence", second=half)
    yield FITTED.exchange("harmful", on_audio("low_pass", _low_pass), "what it removes folds over", second=SECOND)
    yield FITTED.exchange("harmful", EMPHASIS, "its neighbour is twice as far away", second=SECOND)
    yield FITTED.exchange("harmful", HISS, "another noise", second=SECOND)
    yield FITTED.exchange("harmless", GAIN, "a gain is the same for each sample", second=SECOND)


def _mu_law(x: Any) -> Any:
    return (np.sign(x) * np.log1p(255 * np.abs(x)) / np.log(256)).astype(np.float32)


def _low_pass(x: Any) -> Any:
    from scipy.signal import butter, lfilter

    return lfilter(*butter(4, 0.25), x).astype(np.float32)


def _of_spectra() -> Iterator[Exchange]:
    yield SPECTRA.exchange("harmless", DECIBELS, "each number by itself", second=BANDS)
    yield SPECTRA.exchange("harmless", MASKED_BANDS, "the same bands are masked", second=BANDS)
    yield SPECTRA.exchange("harmless", DECIBELS, "each number by itself", second=FRAMES)
    yield SPECTRA.exchange("harmless", MASKED_BANDS, "the same bands are masked", second=FRAMES)
    yield SPECTRA.exchange("harmful", MASKED_TIMES, "other times are masked, within the cut always", second=FRAMES)
    yield SPECTRA.exchange("harmful", DECIBELS, "what is masked is silent instead of 0 dB", second=MASKED_BANDS)
    relative = on_audio("below_the_peak", lambda x: np.maximum(np.log(x + 1e-6) - np.log(x.max() + 1e-6), -8))
    yield SPECTRA.exchange(
        "harmful", relative, "0 dB is the peak of the cut, where the loudest is cut off", second=FRAMES
    )
    normal = on_audio("mean_and_deviation", lambda x: (x - x.mean(0)) / (x.std(0) + 1e-6))
    yield SPECTRA.exchange("harmful", normal, "means are those of the cut, not of the utterance", second=FRAMES)
    thinner = on_audio("every_second_frame", lambda x: x[::2].copy())
    delta = on_audio("deltas", lambda x: np.gradient(x, axis=0))
    yield SPECTRA.exchange("harmful", delta, "differences over twice the time", second=thinner)
    yield SPECTRA.exchange("harmless", delta, "one frame at the end alone", second=FRAMES)
    smooth = on_audio("smooth_times", lambda x: np.stack([np.convolve(b, np.ones(5) / 5, "same") for b in x.T], 1))
    yield SPECTRA.exchange("harmful", smooth, "five frames of smoothing become ten", second=thinner)
    yield SPECTRA.exchange("harmful", MASKED_TIMES, "twelve frames become twenty-four, elsewhere", second=thinner)


def _of_librosa() -> Iterator[Exchange]:
    import librosa

    def step(name: str, fn: Any, **options: Any) -> GuardStep:
        return on_audio(name, lambda x: fn(x, **options))

    group, length = ExchangeKind("librosa"), step("fix_length", librosa.util.fix_length, size=LENGTH)
    slow = step("resample", librosa.resample, orig_sr=RATE, target_sr=RATE // 2)
    pre = step("preemphasis", librosa.effects.preemphasis)
    scaled = step("normalize", librosa.util.normalize)
    mel = step("melspectrogram", lambda x: librosa.feature.melspectrogram(y=x, sr=RATE, n_mels=40))
    decibels = step("power_to_db", librosa.power_to_db)
    top = on_audio("power_to_db_of_max", lambda x: librosa.power_to_db(x, ref=np.max))
    cut = on_audio("first_12", lambda x: x[:, :12].copy())
    trimmed = on_audio("trim", lambda x: librosa.effects.trim(x, top_db=25)[0])
    yield group.exchange("harmless", pre, "each sample depends on the one before it alone", second=length)
    yield group.exchange("harmful", scaled, "the peak is no longer 1 where the loudest is cut off", second=length)
    yield group.exchange("harmful", trimmed, "silence is trimmed off behind the padding: lengths differ", second=length)
    yield group.exchange("harmful", pre, "the neighbour is twice as far away", second=slow, before=[length])
    yield group.exchange("harmless", GAIN, "both are linear", second=slow, before=[length])
    yield group.exchange(
        "harmless", decibels, "each number by itself, above the lowest", second=cut, before=[length, mel]
    )
    yield group.exchange("harmful", top, "0 dB is the peak of the cut", second=cut, before=[length, mel])
    stretch = on_audio("time_stretch", lambda x: librosa.effects.time_stretch(x, rate=1.3))
    yield group.exchange("harmful", stretch, "the result is shorter than the length that was asked for", second=length)
    shift = on_audio("pitch_shift", lambda x: librosa.effects.pitch_shift(x, sr=RATE, n_steps=2))
    yield group.exchange(
        "doubtful", shift, "the same pitch, by windows of twice the time", second=slow, before=[length]
    )
    mfcc = step("mfcc", lambda x: librosa.feature.mfcc(y=x, sr=RATE, n_mfcc=13))
    yield group.exchange("harmful", pre, "not of samples, but of coefficients", second=mfcc, before=[length])
