"""The formats that are fuzzed: how a file of each is made, damaged, read by us and read by a reference."""

from __future__ import annotations

from functools import partial

from pecan_ray.sources import Csv, JsonLines, Parquet, TextLines, TFRecords, WebDataset
from tests.fuzz import damage
from tests.fuzz.formats import (
    Format,
    TextCsv,
    csv_file,
    csv_reference,
    csv_tokens,
    deep,
    gzip_reference,
    header_field,
    inside_gzip,
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
from tests.fuzz.packed import packed, unpacked
from tests.fuzz.typed import TYPES, inferred_reference, typed_file, typed_reference, typed_tokens, value_of

IN_TAR = (*damage.ANY, *(header_field,) * 12, *(pax_record,) * 4)
IN_RECORDS = (*damage.ANY, *(lying_length,) * 4)

FORMATS: dict[str, Format] = {
    "text": Format(".txt", text_file, TextLines, lambda element: element["text"], text_reference),
    "gzip": Format(
        ".txt.gz", lambda rng: inside_gzip(rng, text_file(rng)), TextLines, lambda e: e["text"], gzip_reference
    ),
    "json": Format(".jsonl", json_file, JsonLines, plain_json, json_reference, (*damage.ANY, deep)),
    "csv": Format(
        ".csv",
        csv_file,
        partial(TextCsv, newlines_in_values=True),
        lambda element: tuple(element.values()),
        csv_reference,
        (*damage.ANY, *(csv_tokens,) * 12),
    ),
    "csv-lines": Format(
        ".csv",
        csv_file,
        partial(TextCsv, split_bytes=500),
        lambda element: tuple(element.values()),
        csv_reference,
        (*damage.ANY, *(csv_tokens,) * 12),
    ),
    "tfrecord": Format(
        ".tfrecord",
        tfrecord_file,
        TFRecords,
        lambda element: element["record"],
        tfrecord_reference,
        IN_RECORDS,
    ),
    "tar": Format(
        ".tar",
        tar_file,
        WebDataset,
        plain_sample,
        tar_reference,
        IN_TAR,
        in_order=False,
    ),
    "parquet": Format(".parquet", parquet_file, Parquet, plain_row, parquet_reference),
    **{
        f"text-{kind}": Format(
            f".txt.{ending}",
            packed(kind, text_file, damage.ANY),
            TextLines,
            lambda element: element["text"],
            unpacked(kind, text_reference),
        )
        for kind, ending in (("gzip", "gz"), ("bzip2", "bz2"), ("xz", "xz"), ("zstd", "zst"))
    },
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
        lambda element: element["record"],
        unpacked("gzip", tfrecord_reference),
    ),
    "csv-typed": Format(
        ".csv",
        typed_file,
        partial(Csv, types=TYPES),
        lambda element: tuple(map(value_of, element.values())),
        typed_reference,
        (*damage.ANY, *(typed_tokens,) * 24),
    ),
    "csv-inferred": Format(
        ".csv",
        typed_file,
        Csv,
        lambda element: tuple(map(value_of, element.values())),
        inferred_reference,
        (*damage.ANY, *(typed_tokens,) * 24),
    ),
}
