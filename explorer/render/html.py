"""Build HTML that GitHub, nbviewer and JupyterLab keep in saved notebooks: no scripts, style sheets or ids."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Iterable, Sequence

from explorer.reading.plain_text import clip

_TINT = "rgba(127,127,127,0.12)"
_RULE = "1px solid rgba(127,127,127,.35)"
_BOX = f"border:{_RULE};border-radius:4px;padding:0.4em 0.7em;margin:0.4em 0"
_PRE = "margin:0.4em 0;padding:0.5em 0.7em;overflow:auto;max-height:32em;line-height:1.35;font-size:12px;" + (
    f"background:{_TINT};border-radius:4px;white-space:pre;text-align:left"
)
CELL = f"text-align:left;vertical-align:top;padding:.2em .8em .2em .4em;border-bottom:{_RULE}"
_NUMBER = CELL.replace("text-align:left", "text-align:right") + ";white-space:nowrap"
SMALL = "font-size:85%;opacity:0.75"
WARNING = "margin:0.4em 0;padding:0.3em 0.7em;border-left:4px solid #d55e00"
_NUMERIC = re.compile(r"[\d.,]+(e[+-]\d+)?( ?(B|[KMGT]iB|µs|ms|s|%|bits))?")


def tint(colour: str) -> str:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.35)"


def muted_html(content: str) -> str:
    return f'<span style="{SMALL}">{safe(content)}</span>'


def pre(lines: list[str]) -> str:
    return f'<pre style="{_PRE}">' + "\n".join(lines) + "</pre>"


def table_html(columns: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """HTML table of plain-text cells."""
    return table_of_cells(columns, (map(text_cell, row) for row in rows))


def table_of_cells(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """HTML table of rows of HTML cells, as `cell` returns them."""
    head = "".join(f'<th style="{CELL}">{safe(column)}</th>' for column in columns)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return (
        '<div style="overflow:auto"><table style="margin:0.4em 0;border-collapse:collapse;font-size:12px">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def text_cell(content: str, html: str = "") -> str:
    """Table cell of text; numbers are right-aligned. `html` is the content as HTML, if it has markup."""
    return cell(html or safe(clip(content, 400)), _NUMBER if _NUMERIC.fullmatch(content) else CELL)


def cell(content: str, style: str) -> str:
    return f'<td style="{style}">{content}</td>'


def details(title: str, body: str, is_open: bool = False) -> str:
    state = " open" if is_open else ""
    return f'<details{state} style="{_BOX}"><summary style="cursor:pointer">{title}</summary>{body}</details>'


def picture(alt: str, svg: str) -> str:
    """Embed an SVG as an image, on the page's own background."""
    source = base64.b64encode(svg.encode()).decode()
    image = f'<img alt="{html.escape(alt)}" src="data:image/svg+xml;base64,{source}" style="max-width:100%">'
    style = "border-radius:4px;padding:0.5em;overflow:auto;max-height:44em;display:inline-block"
    return f'<div style="{style};max-width:100%;box-sizing:border-box">{image}</div>'


def left_out_note(count: int, shown: int, what: str, where: str) -> str:
    return note(f"{shown:,} of {count:,} {what} shown; all of them: {where}") if count > shown else ""


def note(content: str) -> str:
    return f'<div style="{SMALL}">{safe(content)}</div>'


def safe(content: str) -> str:
    """Escape text for HTML."""
    return html.escape(content, quote=False)


def prose(content: str) -> str:
    """Escape a sentence for HTML; text in backticks becomes code."""
    return re.sub("`([^`]*)`", r"<code>\1</code>", safe(content))


def static_page(title: str, body: str) -> str:
    """A page without scripts, light or dark as the browser is; nothing is loaded from elsewhere."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        'img-src data:">'
        f"<title>{safe(title)}</title><style>:root{{color-scheme:light dark}}"
        "body{font:14px/1.5 system-ui,sans-serif;max-width:1200px;margin:2em auto;padding:0 1em}</style></head>"
        f'<body><main><h1 style="font-size:1.3em">{safe(title)}</h1>{body}</main></body></html>\n'
    )
