"""The formats that are fuzzed: how a file of each is made, damaged, read by us and read by a reference."""

from __future__ import annotations

from functools import partial
from typing import Any

from pecan_ray.sources import Csv, Files, JsonLines, Parquet, TextLines, TFRecords, WebDataset
from tests.fuzz import damage, formats, values
from tests.fuzz.formats import Format, TextCsv
from tests.fuzz.packed import ENDINGS, from_packed, packed
from tests.fuzz.typed import TYPES, inferred_reference, typed_file, typed_reference, typed_tokens, value_of

IN_TAR = (*damage.ANY, *(formats.header_field,) * 12, *(formats.pax_record,) * 4)
HALF_WHOLE = (*(values.as_it_is,) * len(damage.ANY), *damage.ANY)
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
    make, reference = packed(kind, formats.text_file, damage.ANY), from_packed(kind, formats.text_reference)
    return Format(f".txt.{ENDINGS[kind]}", make, TextLines, text, reference)


VALUES: dict[str, tuple[str, Any, Any, Any, Any]] = {
    "arrow": (".arrow", values.arrow_table, values.arrow_source, values.worded_row, values.arrow_values),
    "csv": (
        ".csv",
        values.csv_values,
        partial(Csv, types=values.CSV_TYPES, split_bytes=900),
        values.worded_row,
        values.csv_values_reference,
    ),
    "csv-spark": (
        ".csv",
        values.spark_file,
        partial(TextCsv, delimiter=";", escape="\\", encoding="cp1252", split_bytes=300),
        lambda element: tuple(element.values()),
        values.spark_reference,
    ),
    "example": (
        ".tfrecord",
        values.examples_file,
        partial(TFRecords, parse=True),
        values.listed,
        values.example_reference,
    ),
    "image": (".img", values.image_file, Files, values.decoded_pixels, values.image_reference),
    "text-japanese": (
        ".txt",
        values.japanese_file,
        partial(TextLines, encoding="shift_jis", split_bytes=50),
        text,
        values.japanese_reference,
    ),
}
"""Whole files, of which each value is compared: how one is made, read by us, worded, and read by a reference."""

FORMATS: dict[str, Format] = {
    "text": Format(".txt", formats.text_file, TextLines, text, formats.text_reference),
    "json": Format(
        ".jsonl",
        values.json_values,
        JsonLines,
        values.json_worded,
        values.json_values_reference,
        (*HALF_WHOLE, formats.deep),
    ),
    "csv": Format(".csv", formats.csv_file, partial(TextCsv, newlines_in_values=True), **TEXT_CELLS),
    "csv-lines": Format(".csv", formats.csv_file, partial(TextCsv, split_bytes=500), **TEXT_CELLS),
    "tfrecord": Format(".tfrecord", formats.tfrecord_file, TFRecords, record, formats.tfrecord_reference, IN_RECORDS),
    "tar": Format(
        ".tar", formats.tar_file, WebDataset, formats.plain_sample, formats.tar_reference, IN_TAR, in_order=False
    ),
    "parquet": Format(".parquet", values.parquet_table, Parquet, values.worded_row, values.parquet_values, HALF_WHOLE),
    **{f"text-{kind}": packed_text(kind) for kind in ENDINGS},
    "tar-gzip": Format(
        ".tar.gz",
        packed("gzip", formats.tar_file, IN_TAR),
        WebDataset,
        formats.plain_sample,
        from_packed("gzip", formats.tar_reference),
        in_order=False,
    ),
    "tfrecord-gzip": Format(
        ".tfrecord.gz",
        packed("gzip", formats.tfrecord_file, IN_RECORDS),
        TFRecords,
        record,
        from_packed("gzip", formats.tfrecord_reference),
    ),
    "csv-typed": Format(".csv", typed_file, partial(Csv, types=TYPES), reference=typed_reference, **TYPED_CELLS),
    "csv-inferred": Format(".csv", typed_file, Csv, reference=inferred_reference, **TYPED_CELLS),
    **{
        f"{name}-values": Format(ending, make, source, plain, reference, (values.as_it_is,))
        for name, (ending, make, source, plain, reference) in VALUES.items()
    },
}
