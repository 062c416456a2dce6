"""What belongs to a library, in which version, and values that are pickled alike."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from skimage.color import rgb2gray

import pecan_ray as pecan
from pecan_ray.plan.fingerprint import canonical_text


def test_the_code_of_a_wrapper_counts_though_it_has_the_module_of_a_library() -> None:
    @functools.wraps(rgb2gray)
    def gray(image: Any) -> Any:
        return rgb2gray(image)

    @functools.wraps(rgb2gray)
    def inverted(image: Any) -> Any:
        return 1 - rgb2gray(image)

    assert canonical_text(gray) != canonical_text(inverted)


def test_the_settings_of_an_object_that_wraps_a_function_count() -> None:
    class Times:
        def __init__(self, fn: Callable[..., Any], times: int) -> None:
            functools.update_wrapper(self, fn)
            self.times = times

        def __call__(self, value: Any) -> Any:
            return value * self.times

    one, two, again = (canonical_text(Times(np.mean, times)) for times in (1, 2, 1))
    assert one == again != two


def test_a_class_that_is_made_in_a_library_counts_by_its_methods() -> None:
    one, two = (dataclasses.make_dataclass("Step", [], namespace={"__call__": fn}) for fn in (abs_of, negative))
    assert canonical_text(one()) != canonical_text(two())


def abs_of(self: Any, value: Any) -> Any:
    return abs(value)


def negative(self: Any, value: Any) -> Any:
    return -value


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Install a package without `__version__`, and return the text of a function of it."""
    folder = tmp_path / "site-packages"
    monkeypatch.syspath_prepend(str(folder))

    def installed(body: int, version: str = "", *, of_folder: bool = False) -> str:
        (folder / "unversioned").mkdir(parents=True, exist_ok=True)
        (folder / "unversioned" / "__init__.py").write_text("from unversioned.steps import clean\n")
        (folder / "unversioned" / "steps.py").write_text(f"def clean(x):\n    return x * {body}\n")
        if version:
            told = folder / "unversioned-1.dist-info"
            told.mkdir(exist_ok=True)
            (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: unversioned\nVersion: {version}\n")
            if of_folder:
                (told / "direct_url.json").write_text(json.dumps({"url": "file:///unversioned", "dir_info": {}}))
        for name in ("unversioned", "unversioned.steps"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()
        sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
        try:
            module = importlib.import_module("unversioned")
        finally:
            sys.dont_write_bytecode = before
        return canonical_text(module.clean)

    return installed


def test_a_package_counts_by_what_was_installed_or_by_its_code_without_a_version_or_if_it_is_a_folder(
    install: Callable[..., str],
) -> None:
    assert install(1) == install(1) != install(2)
    assert install(1, "1.0") == install(1, "1.0") != install(1, "1.1")
    assert install(1, "1.0", of_folder=True) != install(2, "1.0", of_folder=True)


@pytest.mark.parametrize(
    ("one", "again", "other"),
    [
        [[torch.arange(6).reshape(2, 3) + first] for first in (0, 0, 1)],
        ({0, 8}, {8, 0}, {0, 9}),  # sets whose elements lie in one place of the table, in the order of their coming
    ],
    ids=["tensors", "sets"],
)
def test_elements_that_are_equal_are_the_same_when_they_are_made_again(one: Any, again: Any, other: Any) -> None:
    found = [pecan.PecanPipeline(pecan.sources.Items([{"x": value}])).fingerprint() for value in (one, again, other)]
    assert found[0] == found[1] != found[2]
