"""What turns the pages of this folder, which are written to be read in the repository, into a site of their own.

Links that leave the folder lead to copies: pages of the repository's root, and the text of source files.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^)\s]+)\)")
FENCE = re.compile(r"^```python run$", re.MULTILINE)
KINDS = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".json": "json", ".ini": "ini"}


def on_files(files: Any, config: Any) -> Any:
    """Add a page for each file of the repository that any page links to."""
    waiting = [file.src_uri for file in files.documentation_pages()]
    texts = {uri: (Path(config["docs_dir"]) / uri).read_text() for uri in waiting}
    while waiting:
        uri = waiting.pop()
        for path in sorted(outside(texts[uri], uri)):
            copy = copy_of(path)
            if copy is None or copy in texts:
                continue
            texts[copy] = text_of(path)
            files.append(File.generated(config, copy, content=texts[copy]))
            waiting.append(copy)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Let links lead to the copies, and give blocks of code the name of their language alone."""
    here = page.file.src_uri

    def lead(found: re.Match[str]) -> str:
        text, target = found.groups()
        path, _, anchor = target.partition("#")
        place = repository_path(path, here)
        if place is None:
            return found.group(0)
        copy = copy_of(place)
        if copy is None:
            return text[1:-1]
        to = posixpath.relpath(copy, posixpath.dirname(here) or ".")
        return f"{text}({to}{'#' + anchor if anchor and copy.startswith('project/') else ''})"

    return FENCE.sub("```python", LINK.sub(lead, markdown))


def outside(markdown: str, uri: str) -> set[str]:
    """Return the files of the repository, outside of docs/, that a page links to."""
    places = (repository_path(target.partition("#")[0], uri) for _, target in LINK.findall(markdown))
    return {place for place in places if place is not None}


def repository_path(target: str, uri: str) -> str | None:
    """Return what a link leads to, from the repository's root; None inside of docs/, or elsewhere on the web."""
    if not target or "://" in target or target.startswith(("mailto:", "/")):
        return None
    if uri.startswith("project/"):
        place = posixpath.normpath(target)
    elif uri.startswith("code/"):
        return None
    else:
        place = posixpath.normpath(posixpath.join("docs", posixpath.dirname(uri), target))
    if uri.startswith("project/") and place.startswith("docs/"):
        return place
    return None if place.startswith(("docs/", "..")) or place == "docs" else place


def copy_of(path: str) -> str | None:
    """Return the page that shows a file of the repository; None for a folder."""
    if path.startswith("docs/") or path == "docs":
        inner = path.removeprefix("docs").lstrip("/")
        return inner if inner.endswith((".md", ".png", ".svg")) else ("README.md" if not inner else None)
    if (ROOT / path).is_dir() or not (ROOT / path).exists():
        return None
    return f"project/{path}" if path.endswith(".md") else f"code/{path.lstrip('.')}.md"


def text_of(path: str) -> str:
    """Return the page of a file."""
    text = (ROOT / path).read_text()
    if path.endswith(".md"):
        return text
    fence = "`" * 5
    return f"# {path}\n\n{fence}{KINDS.get(Path(path).suffix, 'text')}\n{text}\n{fence}\n"
