"""Images in one folder per class."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pecan_ray.errors import PlanError, SourceNotFoundError
from pecan_ray.plan.splits import Element, Split
from pecan_ray.sources.files import check_positive, identity_of, patterns_of
from pecan_ray.storage import FileInfo, list_folder, read_many, subfolders
from pecan_ray.storage.options import storage_options

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


@dataclass(frozen=True)
class ImageFolder:
    """The images of ``root/<class>/**``: columns image (encoded bytes), label (int) and path (str).

    The label is the place of the class among the sorted names of the folders in `root`.  Other files than
    images (by their extension), and names that begin with ``.`` or ``_``, are left out.  Raises
    SourceNotFoundError if there is no class folder, or no image in any.
    """

    root: str | os.PathLike[str]
    split_files: int = field(default=64, kw_only=True)
    """Images in a split."""
    decode: bool = field(default=False, kw_only=True)
    """The pipeline begins with ``map(images.Decode(), on="image")``: images are uint8 RGB [height, width, 3], and
    AutoOrder still lets the decoder do less where crops and resizing follow."""

    storage_options: Mapping[str, Any] | None = field(default=None, kw_only=True, hash=False)
    """Of the storage, in fsspec's words; secrets as `Env`."""

    def __post_init__(self) -> None:
        check_positive(split_files=self.split_files)
        if not isinstance(self.decode, bool):
            raise PlanError(f"ImageFolder(decode=...) must be True or False, but got {self.decode!r}.")
        object.__setattr__(self, "root", patterns_of(self.root)[0].rstrip("/"))
        object.__setattr__(self, "storage_options", storage_options(self.storage_options, (str(self.root),)))

    @property
    def classes(self) -> list[str]:
        """Names of the classes, in the order of their labels (listed anew at each use)."""
        names = subfolders(str(self.root))
        if not names:
            raise SourceNotFoundError(
                f"There is no class folder in {self.root}. ImageFolder expects {self.root}/<class>/<image>.",
                path=str(self.root),
            )
        return names

    def splits(self) -> Iterator[Split]:
        """Yield groups of images, listing one class after the other."""
        index = 0
        group: list[tuple[str, str, int]] = []
        for label, file in self._images():
            group.append((file.path, file.version, label))
            if len(group) == self.split_files:
                yield self._split(index, group)
                index, group = index + 1, []
        if group:
            yield self._split(index, group)

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield the images of a group, undecoded; from object stores many are fetched at a time.

        One that was replaced since it was listed is refused.
        """
        paths, versions, labels = split.files[start:], split.versions[start:], split.payload[start:]
        for path, label, image in zip(paths, labels, read_many(paths, versions), strict=True):
            yield {"image": image, "label": label, "path": path}

    def num_elements(self) -> int:
        """Return the number of images, by listing them."""
        return sum(1 for _ in self._images())

    def identity(self) -> str:
        """Return a digest of the classes and of every image's path, size and version."""
        return identity_of("ImageFolder", (self.classes, self.split_files), (file for _, file in self._images()))

    def _images(self) -> Iterator[tuple[int, FileInfo]]:
        found = False
        for label, name in enumerate(self.classes):
            for file in list_folder(f"{self.root}/{name}"):
                if file.path.lower().endswith(EXTENSIONS):
                    found = True
                    yield label, file
        if not found:
            raise SourceNotFoundError(
                f"There is no image in the class folders of {self.root}; these extensions count: "
                f"{', '.join(EXTENSIONS)}.",
                path=str(self.root),
            )

    def _split(self, index: int, group: list[tuple[str, str, int]]) -> Split:
        paths, versions, labels = zip(*group, strict=True)
        return Split(index, paths[0], elements=len(group), files=paths, payload=labels, versions=versions)
