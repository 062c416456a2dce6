"""Recordings in one folder per class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pecan_ray.sources.class_folders import ClassFolders


@dataclass(frozen=True, init=False)
class AudioFolder(ClassFolders):
    """The recordings of ``root/<class>/**``: columns audio (encoded bytes), label (int) and path (str).

    The label is the place of the class in `classes`, or among the sorted names of the folders in `root`; all else is as
    in `ImageFolder`.  ``map(pecan.media.DecodeAudio(), on="audio")`` decodes.
    """

    endings: ClassVar = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff", ".aif", ".au", ".m4a", ".aac", ".wma")
    item_name: ClassVar = "recording"
    column: ClassVar = "audio"
