"""HTML that is escaped by construction: text is text, and only what `element` has made is markup."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import TypeAlias


class SafeHtml(str):
    """Finished HTML."""

    __slots__ = ()


Content: TypeAlias = "str | SafeHtml | Iterable[Content] | None"
VOID = frozenset({"br", "input", "link", "meta"})
SHAPES = frozenset({"line", "circle", "polyline"})
"""Of SVG: what is not closed there has all that follows inside, unseen."""


def render(content: Content) -> SafeHtml:
    """Return content as HTML; a plain text is escaped, None is nothing."""
    if content is None:
        return SafeHtml()
    # Before `str`, of which it is one.
    if isinstance(content, SafeHtml):
        return content
    if isinstance(content, str):
        # Names of jobs, paths and errors are anybody's texts, and may hold markup.
        return SafeHtml(html.escape(printable(content)))
    return SafeHtml("".join(map(render, content)))


def element(name: str, /, *content: Content, **attributes: str | int | float | bool | None) -> SafeHtml:
    """Return an element; `class_` gives `class`, `aria_label` gives `aria-label`, False and None leave out."""
    told = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{html.escape(printable(str(value)))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in SHAPES:
        return SafeHtml(f"<{name}{told}/>")
    return SafeHtml(f"<{name}{told}>" if name in VOID else f"<{name}{told}>{render(content)}</{name}>")


def printable(text: str) -> str:
    """Return a text without what HTML cannot hold: control characters, and halves of pairs."""
    if text.isprintable():
        return text
    return "".join(
        letter
        if letter.isprintable() or letter in "\n\t "
        else f"\\x{ord(letter):02x}"
        if ord(letter) < 256
        else "\ufffd"
        for letter in text
    )


def table(
    caption: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[Content]],
    *,
    numbers: frozenset[int] = frozenset(),
) -> SafeHtml:
    """Return a table whose first column names its rows; `numbers`: columns that are set to the right."""
    head = element(
        "tr", [element("th", text, scope="col", class_=_align(i, numbers)) for i, text in enumerate(headings)]
    )
    body = [
        element(
            "tr",
            [
                element("td", cell, class_=_align(i, numbers)) if i else element("th", cell, scope="row")
                for i, cell in enumerate(row)
            ],
        )
        for row in rows
    ]
    made = element("table", element("caption", caption), element("thead", head), element("tbody", body))
    # What is wider than the window scrolls by itself, by keyboard too.
    return element("div", made, class_="scrolls", tabindex=0, role="region", aria_label=caption)


def _align(column: int, numbers: frozenset[int]) -> str | None:
    return "number" if column in numbers else None
