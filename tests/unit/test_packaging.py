"""The four root folders as sub-packages: links for the checkout, a mapping for builds, and the two agree.

Decisions: docs/decisions/packaging-and-dependencies.md.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.programs import ROOT, run_python

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TRAIN = """
import cache, placement
import pecan_ray.cache, pecan_ray.placement

assert cache.mine and placement.mine
assert not hasattr(pecan_ray.cache, "mine") and not hasattr(pecan_ray.placement, "mine")
"""
FOLDERS = ("autoscaler", "cache", "placement", "reorder")
CURE = "run `git config core.symlinks true` and check the folder out again"


def package_folders() -> Iterator[tuple[str, Path]]:
    """Every package, of data too, with the folder that it really lies in, found on the disk."""
    for path, folders, files in os.walk(ROOT / "pecan_ray", followlinks=True):
        folders[:] = [name for name in folders if name != "__pycache__"]
        if any(name.endswith((".py", ".json")) for name in files):
            yield ".".join(Path(path).relative_to(ROOT).parts), Path(path).resolve()


def packages_of_code() -> list[str]:
    return [package for package, folder in package_folders() if any(folder.glob("*.py"))]


def package_file(package: str) -> Path:
    return ROOT.joinpath(*package.split("."), "__init__.py")


def modules() -> list[str]:
    """Paths below pecan_ray/ of code and data that a wheel must hold, each once."""
    return sorted(
        "/".join([*package.split("."), file.name])
        for package, folder in package_folders()
        for file in [*folder.glob("*.py"), *folder.glob("*.json")]
    )


def copy_of_the_tree(target: Path) -> Path:
    """Copy what a build reads, links as links: building must leave nothing behind in the checkout."""
    target.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target)
    for name in ("pecan_ray", *FOLDERS):
        shutil.copytree(ROOT / name, target / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    return target


def build_wheel(tree: Path) -> list[str]:
    """Build a source archive of a tree, and a wheel of that; return the names of the files in the wheel."""
    out = tree.parent / f"{tree.name}-wheel"
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "is absent from the `packages` configuration" not in done.stdout + done.stderr
    assert len([*out.glob("*.tar.gz")]) == 1
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.mark.parametrize("name", FOLDERS)
def test_a_decision_folder_is_flat_and_reached_by_a_link_that_git_keeps(name: str) -> None:
    link = ROOT / "pecan_ray" / name
    assert link.is_symlink() and os.readlink(link) == f"../{name}", f"pecan_ray/{name} is no link: {CURE}"
    assert [entry.name for entry in (ROOT / name).iterdir() if entry.is_dir() and entry.name != "__pycache__"] == []
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "-s", "--", f"pecan_ray/{name}"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        assert listed.startswith("120000 "), f"git holds pecan_ray/{name} as {listed!r}, not as a link: {CURE}"


def test_every_package_is_listed_and_mapped_and_has_an_init() -> None:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert table["package-dir"] == {f"pecan_ray.{name}": name for name in FOLDERS}
    assert sorted(table["packages"]) == sorted(package for package, _ in package_folders())
    assert [package for package in packages_of_code() if not package_file(package).is_file()] == []


@pytest.mark.parametrize("links", ["links", "text files"])
def test_a_wheel_holds_every_module_once(tmp_path: Path, links: str) -> None:
    """Archives of a hosting site and checkouts without links have text files in their place."""
    tree = copy_of_the_tree(tmp_path / "tree")
    if links == "text files":
        for name in FOLDERS:
            (tree / "pecan_ray" / name).unlink()
            (tree / "pecan_ray" / name).write_text(f"../{name}")
    names = build_wheel(tree)
    assert sorted(name for name in names if name.endswith((".py", ".json"))) == modules()
    assert "pecan_ray/py.typed" in names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"pecan_ray"}


def test_a_checkout_leaves_the_names_of_a_user_alone(tmp_path: Path) -> None:
    """A user's own `cache.py` and `placement` beside the program neither shadow ours nor are shadowed."""
    for folder in ("placement", "site"):
        (tmp_path / folder).mkdir()
    for mine in ("cache.py", "placement/__init__.py"):
        (tmp_path / mine).write_text("mine = True\n")
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "site" / "pecan_ray").symlink_to(copy_of_the_tree(tmp_path / "tree") / "pecan_ray")
    done = run_python(str(tmp_path / "train.py"), finding=tmp_path / "site")
    assert done.returncode == 0, done.stderr
    names = [package for package in packages_of_code() if "tensorflow" not in package]
    code = f"import sys, {', '.join(names)}; print([name for name in {FOLDERS!r} if name in sys.modules])"
    assert run_python("-c", code).stdout == "[]\n", "importing everything leaves no bare name"
