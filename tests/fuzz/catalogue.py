"""The formats that are fuzzed: how a file of each is made, damaged, read by us and read by a reference."""

from __future__ import annotations

from functools import partial
from typing import Any

from pecan_ray.sources import Csv, JsonLines, Parquet, TextLines, TFRecords, WebDataset
from tests.fuzz import damage
from tests.fuzz.formats import (
    Format,
    TextCsv,
    csv_file,
    csv_reference,
    csv_tokens,
    deep,
    header_field,
    json_file,
    json_reference,
    lying_length,
    parquet_file,
    parquet_reference,
    pax_record,
    plain_json,
    plain_row,
    plain_sample,
    tar_file,
    tar_reference,
    text_file,
    text_reference,
    tfrecord_file,
    tfrecord_reference,
)
from tests.fuzz.packed import ENDINGS, packed, unpacked
from tests.fuzz.typed import TYPES, inferred_reference, typed_file, typed_reference, typed_tokens, value_of

IN_TAR = (*damage.ANY, *(header_field,) * 12, *(pax_record,) * 4)
IN_RECORDS = (*damage.ANY, *(lying_length,) * 4)
TEXT_CELLS: dict[str, Any] = {
    "plain": lambda element: tuple(element.values()),
    "reference": csv_reference,
    "damages": (*damage.ANY, *(csv_tokens,) * 12),
}
TYPED_CELLS: dict[str, Any] = {
    "plain": lambda element: tuple(map(value_of, element.values())),
    "damages": (*damage.ANY, *(typed_tokens,) * 24),
}


def text(element: dict[str, Any]) -> Any:
    """Return a line."""
    return element["text"]


def record(element: dict[str, Any]) -> Any:
    """Return a record."""
    return element["record"]


def packed_text(kind: str) -> Format:
    """Return compressed lines."""
    make, reference = packed(kind, text_file, damage.ANY), unpacked(kind, text_reference)
    return Format(f".txt.{ENDINGS[kind]}", make, TextLines, text, reference)


FORMATS: dict[str, Format] = {
    "text": Format(".txt", text_file, TextLines, text, text_reference),
    "json": Format(".jsonl", json_file, JsonLines, plain_json, json_reference, (*damage.ANY, deep)),
    "csv": Format(".csv", csv_file, partial(TextCsv, newlines_in_values=True), **TEXT_CELLS),
    "csv-lines": Format(".csv", csv_file, partial(TextCsv, split_bytes=500), **TEXT_CELLS),
    "tfrecord": Format(".tfrecord", tfrecord_file, TFRecords, record, tfrecord_reference, IN_RECORDS),
    "tar": Format(".tar", tar_file, WebDataset, plain_sample, tar_reference, IN_TAR, in_order=False),
    "parquet": Format(".parquet", parquet_file, Parquet, plain_row, parquet_reference),
    **{f"text-{kind}": packed_text(kind) for kind in ENDINGS},
    "tar-gzip": Format(
        ".tar.gz",
        packed("gzip", tar_file, IN_TAR),
        WebDataset,
        plain_sample,
        unpacked("gzip", tar_reference),
        in_order=False,
    ),
    "tfrecord-gzip": Format(
        ".tfrecord.gz",
        packed("gzip", tfrecord_file, IN_RECORDS),
        TFRecords,
        record,
        unpacked("gzip", tfrecord_reference),
    ),
    "csv-typed": Format(".csv", typed_file, partial(Csv, types=TYPES), reference=typed_reference, **TYPED_CELLS),
    "csv-inferred": Format(".csv", typed_file, Csv, reference=inferred_reference, **TYPED_CELLS),
}
