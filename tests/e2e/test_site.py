"""The documentation as a site: whole, strict, and without anything that is loaded from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="MkDocs is not installed: pip install 'pecan_ray[docs]'")
pytest.importorskip("material", reason="MkDocs' theme is not installed: pip install 'pecan_ray[docs]'")
pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed: pip install 'pecan_ray[docs]'")
ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
STEP = re.compile(r"^```python run\n(.*?)^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_every_page_is_there(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    built = {path.relative_to(site) for path in site.rglob("*.html")}
    named = {page.with_name("index.html") if page.name == "README.md" else page.with_suffix(".html") for page in pages}
    assert named <= built
    assert Path("project/CONTRIBUTING.html") in built and Path("code/pecan_ray/pipeline.py.html") in built


@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in (site / "index.html", site / "api.html", site / "howto" / "cluster.html"):
        text = page.read_text()
        loaded = re.findall(r"<(?:script|img|iframe)[^>]*src=\"?([^\" >]+)", text)
        loaded += re.findall(r"<link[^>]*rel=\"?(?:stylesheet|preconnect)[^>]*href=\"?([^\" >]+)", text)
        assert [one for one in loaded if "//" in one] == []


@pytest.mark.slow
def test_the_reference_has_the_docstrings(site: Path) -> None:
    text = (site / "api.html").read_text()
    for name in ("PecanPipeline", "iter_batches", "state_dict", "AutoWorkers", "TextLines", "ErrorBudgetError"):
        assert name in text


@pytest.mark.parametrize(("code", "printed"), STEP.findall(TUTORIAL))
def test_the_tutorial_prints_what_it_shows(code: str, printed: str, tmp_path: Path) -> None:
    code = re.sub(r"iter_batches\((debug=True)?", "iter_batches(debug=True, ", code)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == printed, done.stderr


def test_the_tutorial_has_output_for_each_program_that_runs() -> None:
    assert len(STEP.findall(TUTORIAL)) == TUTORIAL.count("```python run") == 3
