"""The decisions: each number has one section or one line of history, the table names it, and links lead to it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "decisions"
PAGES = sorted(page for page in FOLDER.glob("*.md") if page.name != "README.md")
SECTION = re.compile(r"^## (\d+)\. .+$", re.MULTILINE)
REPLACED = re.compile(r"^- (\d+)\. .+$", re.MULTILINE)
ROW = re.compile(r"^\| (\d+) \| \[.+\]\(([^)]+)\)", re.MULTILINE)
REFERENCE = re.compile(r"decisions/(?!README)([\w-]+(?:\.md)?)(?:#([\w-]+))?")
SPOKEN = re.compile(r"\bdecision\s+(\d+)\b", re.IGNORECASE)
TEXTS = (".md", ".py", ".toml", ".yml", ".yaml", "")


def anchor(heading: str) -> str:
    """Spell a heading as links to it do, on GitHub and in the site."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {anchor(heading) for heading in re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)}


def places() -> dict[int, str]:
    """Where each number stands, as the table links to it."""
    found: list[tuple[int, str]] = []
    for page in PAGES:
        text, _, history = page.read_text().partition("\n## Replaced\n")
        found += [(int(one[1]), f"{page.name}#{anchor(one[0][3:])}") for one in SECTION.finditer(text)]
        found += [(int(one[1]), f"{page.name}#replaced") for one in REPLACED.finditer(history)]
    assert [number for number, count in Counter(number for number, _ in found).items() if count > 1] == []
    return dict(found)


def texts() -> Iterator[tuple[str, str]]:
    """Every file of the repository that may refer to a decision."""
    for top in ROOT.iterdir():
        if top.name in (".git", ".venv", "build") or top.name.endswith("_cache"):
            continue
        for path in [top] if top.is_file() else top.rglob("*"):
            if path.suffix in TEXTS and path.is_file() and "__pycache__" not in path.parts:
                yield str(path.relative_to(ROOT)), path.read_text(errors="replace")


def test_the_table_names_each_number_once_with_its_place() -> None:
    rows = ROW.findall((FOLDER / "README.md").read_text())
    assert len(rows) > 150
    assert {int(number): target for number, target in rows} == places()
    assert [int(number) for number, _ in rows] == sorted({int(number) for number, _ in rows})


def test_each_page_and_each_section_begins_with_its_status() -> None:
    for page in PAGES:
        without = [part.splitlines()[0] for part in re.split(r"^#+ ", page.read_text(), flags=re.MULTILINE)[1:]]
        parts = re.findall(r"^#+ (.+)\n\n(\w+:)?", page.read_text(), re.MULTILINE)
        assert [heading for heading, word in parts if word != "Status:" and heading != "Replaced"] == [], page.name
        assert [heading for heading, _ in parts] == without


def test_references_in_code_and_text_lead_to_a_page_a_section_and_a_number() -> None:
    known = {page.name: {None, *anchors(page)} for page in PAGES}
    numbers = places()
    lost = [
        (where, found[0])
        for where, text in texts()
        if where != "tests/unit/test_decisions.py"
        for found in [*REFERENCE.finditer(text), *SPOKEN.finditer(text)]
        if (int(found[1]) not in numbers if found.re is SPOKEN else found[2] not in known.get(found[1], ()))
    ]
    assert lost == []
