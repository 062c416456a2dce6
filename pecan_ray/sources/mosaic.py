"""Folders that Mosaic's streaming library has written (MDS), read by that library."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from pecan_ray.errors import CorruptSourceError, PlanError, SourceNotFoundError
from pecan_ray.plan.splits import Element, Split
from pecan_ray.sources.files import identity_of, local_folder
from pecan_ray.sources.libraries import library
from pecan_ray.storage import file_info, read_all


@dataclass(frozen=True)
class Mds:
    """The samples of a local folder with the ``index.json`` of Mosaic's MDSWriter; each shard is a split.

    It needs the library: ``pip install 'pecan_ray[mosaic]'``.  Raises PlanError for shards that are compressed alone,
    and for columns that are pickled: reading these would run code.
    """

    folder: str | os.PathLike[str]
    counts_splits: ClassVar[bool] = True

    def __post_init__(self) -> None:
        folder = local_folder("Mds", self.folder)
        object.__setattr__(self, "folder", folder)

    def splits(self) -> Iterator[Split]:
        """Yield the shards."""
        for index, shard in enumerate(self._shards()):
            path = f"{self.folder}/{shard['raw_data']['basename']}"
            try:
                version = file_info(path).version
            except SourceNotFoundError:
                if shard.get("zip_data") and os.path.exists(f"{self.folder}/{shard['zip_data']['basename']}"):
                    raise PlanError(
                        f"Mds: the shards in {self.folder} are compressed ({shard['compression']}): unpack them first, "
                        "as StreamingDataset(local=...) does when it is iterated over."
                    ) from None
                raise
            yield Split(index, path, elements=int(shard["samples"]), payload=shard, version=version)

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield samples from number `start` on."""
        formats = library("streaming.base.format", "sources.Mds", "mosaic")
        try:
            shard = formats.reader_from_json(self.folder, None, split.payload)
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            raise self._no_index(f"its shard {split.index} cannot be read ({error!r})") from error
        try:
            # Pickled columns run code when they are read
            # (docs/decisions/security.md#30-files-and-streams-run-no-code).
            shard.validate(allow_unsafe_types=False)
        except ValueError as error:
            words = str(error).partition(". ")[0]
            raise PlanError(f"Mds: {split.path}: {words}: reading it runs code. Write it with other types.") from error
        for number in range(start, split.elements or 0):
            try:
                sample = shard.get_item(number)
            # No damage: a disk that fails may answer again.
            except OSError:
                raise
            except Exception as error:  # the library decodes by many others
                raise CorruptSourceError(
                    f"Sample {number} of {split.path} cannot be decoded: {error}.", path=split.path, element=number
                ) from error
            yield dict(sample)

    def num_elements(self) -> int:
        """Return the number of samples that the index tells."""
        return sum(int(shard["samples"]) for shard in self._shards())

    def identity(self) -> str:
        """Return a digest of every shard's path, size and version."""
        return identity_of("Mds", None, (file_info(split.path) for split in self.splits()))

    def _shards(self) -> list[dict[str, Any]]:
        try:
            index = json.loads(read_all(f"{self.folder}/index.json"))
            shards = [dict(shard) for shard in index["shards"]]
            for shard in shards:
                # What the index lacks is told here, and not by the library in the midst of reading.
                _ = str(shard["raw_data"]["basename"]), int(shard["samples"])
        except (KeyError, TypeError, ValueError) as error:
            raise self._no_index(repr(error)) from error
        return shards

    def _no_index(self, why: str) -> CorruptSourceError:
        path = f"{self.folder}/index.json"
        return CorruptSourceError(f"{path} is no index that MDSWriter has written: {why}.", path=path)
