"""The formats that are fuzzed: how a file of each is made, damaged, read by us and read by a reference."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from pecan_ray.sources import JsonLines, Parquet, TextLines, TFRecords, WebDataset
from tests.fuzz import damage, formats, values
from tests.fuzz.formats import Format, TextCsv
from tests.fuzz.packed import ENDINGS, from_packed, packed

IN_TAR = (*damage.ANY, *(formats.header_field,) * 12, *(formats.pax_record,) * 4)
HALF_WHOLE = (*(values.as_it_is,) * len(damage.ANY), *damage.ANY)
IN_RECORDS = (*damage.ANY, *(formats.lying_length,) * 4)
TEXT_CELLS: dict[str, Any] = {
    "plain": lambda element: tuple(element.values()),
    "reference": formats.csv_reference,
    "damages": (*damage.ANY, *(formats.csv_tokens,) * 12),
}


def text(element: dict[str, Any]) -> Any:
    return element["text"]


def record(element: dict[str, Any]) -> Any:
    return element["record"]


def in_pack(kind: str, form: Format) -> Format:
    """Return a format in compressed files; it is damaged before or after it is compressed."""
    make, reference = packed(kind, form.make, form.damages), from_packed(kind, form.reference)
    ending = f"{form.ending}.{ENDINGS[kind]}"
    return replace(form, ending=ending, make=make, reference=reference, damages=damage.ANY)


TEXT = Format(".txt", formats.text_file, TextLines, text, formats.text_reference)
TAR = Format(".tar", formats.tar_file, WebDataset, formats.plain_sample, formats.tar_reference, IN_TAR, in_order=False)
RECORDS = Format(".tfrecord", formats.tfrecord_file, TFRecords, record, formats.tfrecord_reference, IN_RECORDS)
FORMATS: dict[str, Format] = {
    "text": TEXT,
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
    "tfrecord": RECORDS,
    "tar": TAR,
    "parquet": Format(".parquet", values.parquet_table, Parquet, values.worded_row, values.parquet_values, HALF_WHOLE),
    **{f"text-{kind}": in_pack(kind, TEXT) for kind in ENDINGS},
    "tar-gzip": in_pack("gzip", TAR),
    "tfrecord-gzip": in_pack("gzip", RECORDS),
}
"""Of half of the files of Parquet and JSON, which are whole, each value is compared."""
