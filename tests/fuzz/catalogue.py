"""The formats that are fuzzed: how a file of each is made, damaged, read by us and read by a reference."""

from __future__ import annotations

from functools import partial
from typing import Any

from pecan_ray.sources import Csv, JsonLines, Parquet, TextLines, TFRecords, WebDataset
from tests.fuzz import damage, formats
from tests.fuzz.formats import Format, TextCsv
from tests.fuzz.packed import ENDINGS, packed, unpacked
from tests.fuzz.typed import TYPES, inferred_reference, typed_file, typed_reference, typed_tokens, value_of

IN_TAR = (*damage.ANY, *(formats.header_field,) * 12, *(formats.pax_record,) * 4)
IN_RECORDS = (*damage.ANY, *(formats.lying_length,) * 4)
TEXT_CELLS: dict[str, Any] = {
    "plain": lambda element: tuple(element.values()),
    "reference": formats.csv_reference,
    "damages": (*damage.ANY, *(formats.csv_tokens,) * 12),
}
TYPED_CELLS: dict[str, Any] = {
    "plain": lambda element: tuple(map(value_of, element.values())),
    "damages": (*damage.ANY, *(typed_tokens,) * 24),
}


def text(element: dict[str, Any]) -> Any:
    return element["text"]


def record(element: dict[str, Any]) -> Any:
    return element["record"]


def packed_text(kind: str) -> Format:
    make, reference = packed(kind, formats.text_file, damage.ANY), unpacked(kind, formats.text_reference)
    return Format(f".txt.{ENDINGS[kind]}", make, TextLines, text, reference)


FORMATS: dict[str, Format] = {
    "text": Format(".txt", formats.text_file, TextLines, text, formats.text_reference),
    "json": Format(
        ".jsonl", formats.json_file, JsonLines, formats.plain_json, formats.json_reference, (*damage.ANY, formats.deep)
    ),
    "csv": Format(".csv", formats.csv_file, partial(TextCsv, newlines_in_values=True), **TEXT_CELLS),
    "csv-lines": Format(".csv", formats.csv_file, partial(TextCsv, split_bytes=500), **TEXT_CELLS),
    "tfrecord": Format(".tfrecord", formats.tfrecord_file, TFRecords, record, formats.tfrecord_reference, IN_RECORDS),
    "tar": Format(
        ".tar", formats.tar_file, WebDataset, formats.plain_sample, formats.tar_reference, IN_TAR, in_order=False
    ),
    "parquet": Format(".parquet", formats.parquet_file, Parquet, formats.plain_row, formats.parquet_reference),
    **{f"text-{kind}": packed_text(kind) for kind in ENDINGS},
    "tar-gzip": Format(
        ".tar.gz",
        packed("gzip", formats.tar_file, IN_TAR),
        WebDataset,
        formats.plain_sample,
        unpacked("gzip", formats.tar_reference),
        in_order=False,
    ),
    "tfrecord-gzip": Format(
        ".tfrecord.gz",
        packed("gzip", formats.tfrecord_file, IN_RECORDS),
        TFRecords,
        record,
        unpacked("gzip", formats.tfrecord_reference),
    ),
    "csv-typed": Format(".csv", typed_file, partial(Csv, types=TYPES), reference=typed_reference, **TYPED_CELLS),
    "csv-inferred": Format(".csv", typed_file, Csv, reference=inferred_reference, **TYPED_CELLS),
}
