"""The documentation as a site: whole, strict, and without anything that is loaded from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import started_programs

pytest.importorskip("mkdocs", reason="MkDocs is not installed: pip install 'pecan_ray[docs]'")
pytest.importorskip("material", reason="MkDocs' theme is not installed: pip install 'pecan_ray[docs]'")
pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed: pip install 'pecan_ray[docs]'")
ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
STEP = re.compile(r"^```python run\n(.*?)^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_site_has_every_page_and_the_docstrings_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    built = {path.relative_to(tmp_path) for path in tmp_path.rglob("*.html")}
    named = {page.with_name("index.html") if page.name == "README.md" else page.with_suffix(".html") for page in pages}
    assert named <= built
    assert Path("project/CONTRIBUTING.html") in built and Path("code/pecan_ray/pipeline.py.html") in built
    for page in ("index.html", "api.html", "howto/cluster.html"):
        text = (tmp_path / page).read_text()
        loaded = re.findall(r"<(?:script|img|iframe)[^>]*src=\"?([^\" >]+)", text)
        loaded += re.findall(r"<link[^>]*rel=\"?(?:stylesheet|preconnect)[^>]*href=\"?([^\" >]+)", text)
        assert [one for one in loaded if "//" in one] == []
    reference = (tmp_path / "api.html").read_text()
    for name in ("PecanPipeline", "iter_batches", "state_dict", "AutoWorkers", "TextLines", "ErrorBudgetError"):
        assert name in reference


def test_the_tutorial_prints_what_it_shows(tmp_path: Path) -> None:
    steps = STEP.findall(TUTORIAL)
    assert len(steps) == TUTORIAL.count("```python run") == 3, "each program that runs has its output"
    with started_programs() as programs:
        for code, printed in steps:
            code = re.sub(r"iter_batches\((debug=True)?", "iter_batches(debug=True, ", code)
            done = programs.run(code, tmp_path, said=tmp_path)
            assert done.stdout == printed, done.stderr
