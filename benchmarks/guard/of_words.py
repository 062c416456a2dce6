"""Exchanges of operators on sentences, rows of tables, and videos."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from typing import Any

import cv2
import numpy as np

from benchmarks.guard import ops
from benchmarks.guard.exchange import Exchange, ExchangeKind, Harm, on_element, on_row, on_text, on_video
from benchmarks.guard.ops import GuardStep

TEXT, ROW, VIDEO = ExchangeKind("text"), ExchangeKind("row"), ExchangeKind("video")
STOPS = {"the", "of", "and", "a", "to", "in", "it", "was", "her", "his"}
LOWER = on_text("lower", str.lower)
CUT = on_text("first_60", lambda x: x[:60])


def exchanges() -> Iterator[Exchange]:
    """Yield all of this file."""
    yield from _of_sentences()
    yield from _of_tokens()
    yield from _of_rows()
    yield from _of_videos()


def _of_sentences() -> Iterator[Exchange]:
    for label, first, second, why in (
        ("harmless", LOWER, on_text("strip", lambda x: x.strip(" .,")), "letters and spaces do not meet"),
        ("harmless", LOWER, CUT, "each letter by itself"),
        ("harmless", on_text("accents", _without_accents), LOWER, "each letter by itself"),
        ("harmless", on_text("digits", lambda x: re.sub(r"\d", "#", x)), LOWER, "each letter by itself"),
        ("harmful", on_text("punctuation", lambda x: re.sub(r"[^\w\s]", "", x)), CUT, "fewer letters are left"),
        ("harmful", on_text("stop_words", _without_stops), CUT, "fewer letters are left"),
        ("harmful", on_text("spoken", lambda x: x.replace("Mr.", "Mister").replace("I ", "Me ")), LOWER,
         "no capital letter is found behind it"),
        ("harmful", on_text("capitalised", str.title), LOWER, "titles instead of small letters"),
        ("harmful", on_text("with_end", lambda x: x + " </s>"), CUT, "the end is not cut off"),
        ("harmful", on_text("with_begin", lambda x: "<s> " + x), CUT, "four letters more are left"),
        ("harmful", on_text("backwards", lambda x: " ".join(x.split()[::-1])), CUT, "the other end is left"),
        ("harmful", on_text("twice", lambda x: f"{x} {x}"), CUT, "the result has 121 letters"),
        ("harmful", on_element("length", lambda e: {**e, "letters": len(e["text"])}), CUT, "lengths are 60 at most"),
        ("harmful", on_text("first_words", lambda x: " ".join(x.split()[:12])), on_text("stop_words", _without_stops),
         "twelve words, whatever is removed"),
    ):  # fmt: skip
        yield TEXT.exchange(_label(label), first, why, second=second)
    shuffled = on_text("shuffled", lambda x, rng: " ".join(rng.permutation(x.split())), random=True)
    yield TEXT.exchange("harmful", shuffled, "other words are left", second=CUT)
    long = on_text("long", lambda x: len(x) > 60, kind="filter")
    yield TEXT.exchange("harmful", long, "no text is long that was cut", second=CUT)
    yield TEXT.exchange("harmless", LOWER, "lengths are the same", second=long)
    parts = on_text("sentences", lambda x: [part for part in x.split(",") if part], kind="flat_map")
    yield TEXT.exchange("harmless", LOWER, "commas stay", second=parts)
    yield TEXT.exchange("harmful", parts, "each part is cut, or the whole", second=CUT)


def _label(name: str) -> Harm:
    return "harmful" if name == "harmful" else "harmless"


def _without_accents(text: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFD", text) if not unicodedata.combining(c))


def _without_stops(text: str) -> str:
    return " ".join(word for word in text.split() if word.lower() not in STOPS)


@cache
def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE(unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    letters = [chr(n) for n in range(33, 127)]
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["[UNK]"], initial_alphabet=letters, show_progress=False
    )
    made.train_from_iterator(["the of and to that was her she had with for not be you it is as him have"], trainer)
    return made


def _of_tokens() -> Iterator[Exchange]:
    ids = on_text("ids", lambda x: np.array([sum(map(ord, word)) % 997 for word in x.split()] or [0], np.int64))
    if find_spec("tokenizers") is not None:
        ids = on_text("bpe", lambda x: np.array(_tokenizer().encode(x).ids or [0], np.int64))
        yield TEXT.exchange("harmful", CUT, "60 letters, or 60 tokens", second=ids)
        yield TEXT.exchange("harmful", LOWER, "small letters have other tokens", second=ids)
    tokens = ExchangeKind("tokens", before=(ids,))
    short = on_text("first_16", lambda x: np.pad(x[:16], (0, max(0, 16 - len(x)))))
    masked = on_text("masked", lambda x, rng: np.where(rng.random(len(x)) < 0.15, 1, x), random=True)
    yield tokens.exchange("harmful", masked, "padding is masked too", second=short)
    ended = on_text("ended", lambda x: np.append(x, 2))
    yield tokens.exchange("harmful", ended, "the end is not cut off", second=short)
    unique = on_text("unique", lambda x: np.unique(x))
    yield tokens.exchange("harmful", unique, "tokens of the first 16 alone", second=short)
    shifted = on_text("shifted", lambda x: x + 3)
    yield tokens.exchange("harmful", shifted, "padding is 3 instead of 0", second=short)
    head = on_text("first_8", lambda x: x[:8].copy())
    yield tokens.exchange("harmless", shifted, "each number by itself", second=head)
    yield tokens.exchange("harmless", masked, "the same tokens are masked", second=head)
    lengths = on_element("length", lambda e: {**e, "length": len(e["text"])})
    yield tokens.exchange("harmful", lengths, "the length is that of the padded text", second=short)


# --- tables


def _with(row: Any, **changed: Any) -> Any:
    return {**row, **changed}


def _of_rows() -> Iterator[Exchange]:
    for label, first, second, why in (
        ("harmful", _on("standard", "delay", lambda x: (x - 12) / 40), _on("filled", "delay", _filled),
         "missing delays become the mean, instead of no delay"),
        ("harmless", _on("rooted", "distance", np.sqrt), _on("filled", "delay", _filled), "different fields"),
        ("harmless", _on("cube_root", "delay", np.cbrt), _on("filled", "delay", _filled), "the root of 0 is 0"),
        ("harmful", _on("clipped", "delay", lambda x: float(np.clip(x, -10, 30))),
         _on("hours", "delay", lambda x: x / 60),
         "nothing of an hour is clipped"),
        ("harmful", _on("hundreds", "distance", lambda x: round(x / 100) * 100),
         _on("km", "distance", lambda x: x * 1.6),
         "hundreds of miles, or of kilometres"),
        ("harmful", on_row("speed", lambda r: _with(r, speed=r["distance"] / r["air"])),
         _on("km", "distance", lambda x: x * 1.6), "the speed is in kilometres"),
        ("harmless", on_row("speed", lambda r: _with(r, speed=r["distance"] / r["air"])),
         _on("carrier_lower", "carrier", str.lower), "different fields"),
        ("harmful", _on("hashed", "carrier", lambda x: sum(map(ord, x)) % 31), _on("carrier_lower", "carrier", _lower),
         "small letters have other numbers"),
        ("harmless", _on("late", "delay", lambda x: float(x > 15)), _on("filled", "delay", _filled),
         "a missing delay is not late, and neither is none"),
        ("harmful", on_row("known_delay", lambda r: r["delay"] == r["delay"], kind="filter"),
         _on("filled", "delay", _filled), "no row is missing any more"),
        ("harmless", on_row("far", lambda r: r["distance"] > 800, kind="filter"),
         _on("filled", "delay", _filled), "different fields"),
        ("harmful", on_row("far", lambda r: r["distance"] > 800, kind="filter"),
         _on("km", "distance", lambda x: x * 1.6), "other rows are far"),
    ):  # fmt: skip
        yield ROW.exchange(_label(label), first, why, second=second)
    vector = ExchangeKind("vector", before=(GuardStep("vector", _vector, "row"),))
    cumulated, ranked = on_row("cumulated", np.cumsum), on_row("ranked", lambda x: np.sort(x)[::-1].copy())
    five, second_ = on_row("first_5", lambda x: x[:5].copy()), on_row("every_second", lambda x: x[::2].copy())
    yield vector.exchange("harmless", cumulated, "sums of what comes before", second=five)
    yield vector.exchange("harmful", cumulated, "sums of half of the numbers", second=second_)
    yield vector.exchange("harmful", ranked, "the five largest, or the first five", second=five)
    mean = on_row("above_mean", lambda x: x - x.mean())
    yield vector.exchange("harmful", mean, "the mean is that of five numbers", second=five)
    yield vector.exchange("harmless", on_row("log", lambda x: np.log1p(np.abs(x))), "each by itself", second=five)
    noise = on_row("noise", lambda x, rng: x + rng.normal(0, 1, x.shape), random=True)
    scaled = on_row("thousandths", lambda x: x / 1000)
    yield vector.exchange("harmful", noise, "noise of 1 is a thousand times as strong", second=scaled)


def _on(name: str, field: str, fn: Any) -> GuardStep:
    return on_row(name, lambda row: {**row, field: fn(row[field])})


def _filled(x: Any) -> Any:
    return 0.0 if x != x else x


def _lower(x: Any) -> Any:
    return x.lower() if isinstance(x, str) else x


def _vector(row: Any) -> Any:
    numbers = np.random.default_rng(int(row["distance"])).normal(row["distance"] / 100, 5, 64)
    return numbers.astype(np.float32)


# --- videos


def _smoothed(x: Any) -> Any:
    frames = x.astype(np.float32)
    return (sum(np.roll(frames, k, 0) for k in (-2, -1, 0, 1, 2)) / 5).astype(np.uint8)


def _of_videos() -> Iterator[Exchange]:
    fourth, first = on_video("every_4th", lambda x: x[::4].copy()), on_video("first_8", lambda x: x[:8].copy())
    small = on_video(
        "small_frames", lambda x: np.stack([cv2.resize(f, (48, 36), interpolation=cv2.INTER_AREA) for f in x])
    )
    smooth, backwards = on_video("smoothed", _smoothed), on_video("backwards", lambda x: x[::-1].copy())
    change = on_video("changes", lambda x: np.diff(x.astype(np.int16), axis=0, prepend=x[:1].astype(np.int16)))
    still = on_video("without_mean", lambda x: (x.astype(np.float32) - x.mean(0)).astype(np.int16))
    median = on_video("median_of_3", lambda x: np.median(np.stack([np.roll(x, k, 0) for k in (-1, 0, 1)]), 0))
    noise = on_video("noise", lambda x, rng: ops.like(np.uint8, x + rng.normal(0, 8, x.shape)), random=True)
    bright = on_video("brighter", lambda x, rng: ops.like(np.uint8, x * np.float32(rng.uniform(0.6, 1.4))), random=True)
    blurred = on_video("blurred", lambda x: np.stack([cv2.GaussianBlur(f, (9, 9), 2) for f in x]))
    trail = on_video(
        "trail", lambda x: (np.cumsum(x, 0) / np.arange(1, len(x) + 1).reshape(-1, 1, 1, 1)).astype(np.uint8)
    )
    flip = on_video("flip", lambda x: x[:, :, ::-1].copy())
    start = on_video("random_8", lambda x, rng: x[(n := int(rng.integers(0, len(x) - 8))) : n + 8].copy(), random=True)
    lively = on_video("lively", lambda x: x[np.abs(np.diff(x.mean((1, 2, 3)), append=0)) >= 0.05][:4].copy())
    yield VIDEO.exchange("harmful", smooth, "five frames of smoothing become twenty", second=fourth)
    yield VIDEO.exchange("harmful", change, "changes over four frames instead of one", second=fourth)
    yield VIDEO.exchange("harmful", still, "the mean is that of the first frames", second=first)
    yield VIDEO.exchange("harmful", median, "medians of frames that lie four apart", second=fourth)
    yield VIDEO.exchange("harmful", noise, "another noise, and three times as strong", second=small)
    yield VIDEO.exchange("harmful", backwards, "the other end is left", second=first)
    yield VIDEO.exchange("harmful", backwards, "other frames are left", second=fourth)
    yield VIDEO.exchange("harmful", trail, "the trail is that of a fourth of the frames", second=fourth)
    yield VIDEO.exchange("harmful", blurred, "its radius stays, of frames that are half as large", second=small)
    yield VIDEO.exchange("harmful", lively, "frames are left out before they are chosen", second=fourth)
    yield VIDEO.exchange("harmful", smooth, "the ends of eight frames are mixed, not of sixteen", second=first)
    yield VIDEO.exchange("doubtful", backwards, "another part of the video, equally likely", second=start)
    yield VIDEO.exchange("harmless", small, "each frame by itself", second=fourth)
    yield VIDEO.exchange("harmless", bright, "each pixel by itself", second=fourth)
    yield VIDEO.exchange("harmless", bright, "each pixel by itself", second=small)
    yield VIDEO.exchange("harmless", trail, "sums of frames before", second=first)
    yield VIDEO.exchange("harmless", flip, "each frame by itself", second=start)
    yield VIDEO.exchange("harmless", smooth, "time and place do not meet, but for rounding", second=small)
    yield VIDEO.exchange("harmless", blurred, "each frame by itself", second=first)
