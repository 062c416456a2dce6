"""What all pages have in common."""

from __future__ import annotations

from urllib.parse import quote

from pecan_ray.observe.dashboard.html_builder import Content, SafeHtml, element, render

REFRESH_S = 2
"""A page that shows what is live asks for itself anew after so long: windows of measurements take five seconds, and a
page is no load."""


def page(title: str, base: str, *content: Content, live: bool = False, way: Content = None) -> str:
    """Return a whole page; `base`: what all addresses begin with; `live`: it asks for itself anew; `way`: to here."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{title} - pecan_ray"),
        element("link", rel="stylesheet", href=f"{base}/style.css"),
        element("script", "", src=f"{base}/live.js", defer=True) if live else None,
    )
    pause = (
        element(
            "p",
            element("button", "Pause", type="button", id="pause", aria_pressed="false", hidden=True),
            element("span", f"Read anew every {REFRESH_S} s where scripts run; ", id="freshness", role="status"),
            element("a", "read anew now", href=""),
            class_="refresh",
        )
        if live
        else None
    )
    body = element(
        "body",
        element("a", "To the content", href="#content", class_="skip"),
        element(
            "header",
            element("nav", element("a", "pecan_ray jobs", href=f"{base}/", class_="home"), way, aria_label="Way"),
            pause,
        ),
        element(
            "main", element("h1", title), *content, id="content", tabindex=-1, data_every=REFRESH_S if live else None
        ),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def section(key: str, title: str, *content: Content) -> SafeHtml:
    """Return a part of a page with a heading of its own, which is exchanged when what it shows has changed."""
    return element(
        "section",
        element("h2", title, id=f"{key}-heading"),
        render(content),
        id=key,
        aria_labelledby=f"{key}-heading",
        data_live=True,
    )


def job_address(base: str, name: str, past: str = "") -> str:
    """Return the address of a job's page."""
    # Names are the user's, and may hold what divides an address.
    return f"{base}/past?key={quote(past, safe='')}" if past else f"{base}/job?name={quote(name, safe='')}"


def message_page(title: str, base: str, text: str) -> str:
    """Return a page that says one thing."""
    return page(title, base, element("p", text), element("p", element("a", "To the list of jobs", href=f"{base}/")))


def token_page(base: str, *, wrong: bool) -> str:
    """Return the page that asks for the cluster's token."""
    return page(
        "Token needed",
        base,
        element(
            "p",
            "This cluster asks for its token, and so does this page. The command ",
            element("code", "ray get-auth-token"),
            " prints it.",
        ),
        element("p", "That was not the token of this cluster.", role="alert", class_="error") if wrong else None,
        element(
            "form",
            element(
                "label",
                "Token ",
                element("input", type="password", name="token", autocomplete="off", required=True, autofocus=True),
            ),
            " ",
            element("button", "Go on", type="submit"),
            method="post",
            action=f"{base}/token",
        ),
    )
