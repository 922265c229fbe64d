"""Renders the parts of a trace's page as HTML. Only this module escapes text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from rlsched.errors import InputError
from rlsched.files.atomic import replace_file
from rlsched.report.figures import Plot


class Section(NamedTuple):
    """A section of the page.

    Attributes:
        key: ID of the section in the page.
        title: Heading.
        parts: HTML of the parts of the section, in order.
        lacks: Reason why the section has no data; "" if it has data.
    """

    key: str
    title: str
    parts: tuple[str, ...]
    lacks: str = ""


def paragraph(text: str, kind: str = "") -> str:
    """Return plain text as an HTML paragraph."""
    attribute = f' class="{kind}"' if kind else ""
    return f"<p{attribute}>{escape(text)}</p>"


def figure(plot: Plot) -> str:
    """Return a plot with its caption as HTML."""
    return (
        f'<figure><div class="plot">{plot.svg}</div><figcaption>{escape(plot.caption)}</figcaption></figure>'
    )


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]], folded: bool = True) -> str:
    """Return a table as HTML. The first column has the headings of the rows.

    `folded`: whether the page shows only the caption until the user opens the table.
    """
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "".join(_row(row) for row in rows)
    inner = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    if not folded:
        return f'<div class="table"><table><caption>{escape(caption)}</caption>{inner}</table></div>'
    return (
        f"<details><summary>{escape(caption)}</summary>"
        f'<div class="table"><table>{inner}</table></div></details>'
    )


def _row(row: Sequence[str]) -> str:
    cells = "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
    return f'<tr><th scope="row">{escape(row[0])}</th>{cells}</tr>'


def cards(facts: Iterable[tuple[str, str]]) -> str:
    """Return headline figures as HTML, from (name, value) pairs."""
    items = "".join(f"<div><dt>{escape(what)}</dt><dd>{escape(value)}</dd></div>" for what, value in facts)
    return f'<dl class="cards">{items}</dl>'


def document(title: str, subtitle: str, lead: str, sections: Sequence[Section], foot: str) -> str:
    """Return the whole page as HTML. Its content security policy forbids loading from the network."""
    style = files("rlsched.report").joinpath("page.css").read_text(encoding="utf-8")
    links = "".join(f'<li><a href="#{one.key}">{escape(one.title)}</a></li>' for one in sections)
    body = "".join(
        f'<section id="{one.key}" aria-labelledby="h-{one.key}"><h2 id="h-{one.key}">{escape(one.title)}</h2>'
        f"{''.join(one.parts)}</section>"
        for one in sections
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{escape(title)}</title>
<style>
{style}</style>
</head>
<body>
<header><h1>{escape(title)}</h1>{paragraph(subtitle, "subtitle")}</header>
<nav aria-label="Sections"><ol>{links}</ol></nav>
<main>{lead}{body}</main>
<footer>{foot}</footer>
</body>
</html>
"""


def write(text: str, path: Path) -> None:
    """Write a page atomically: on an error, the file does not change.

    Raises:
        InputError: the file cannot be written.
    """
    try:
        replace_file(path, text.encode("utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot write this page: {error.strerror or error}") from error
