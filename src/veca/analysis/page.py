"""Pages for a browser: one file with style and pictures inside, which opens without a network.

Names of folders, classes and models are anybody's: `text` makes them harmless wherever they stand.
"""

import base64
import html
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from PIL import Image

from veca.runtime.files import printable

STYLE = Path(__file__).with_name("page.css")
"""Of every page: light and dark, down to the width of a phone."""

# The policy holds whatever the body says: nothing is fetched and no script runs.
DOCUMENT = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def document(title: str, body: str, style: str = "") -> bytes:
    """A whole page; `body` is HTML, `style` is added to that of every page."""
    style = f"{STYLE.read_text('utf-8')}{style}\n"
    return DOCUMENT.format(title=text(title), style=style, body=body).encode()


def text(value: object) -> str:
    """A value as text between tags or in quotes: no markup, no control characters, valid UTF-8."""
    return html.escape(printable(str(value)))


def table(titles: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table that scrolls by itself where it is too wide; cells are HTML."""
    head = "".join(f"<th>{title}</th>" for title in titles)
    rows = ("".join(f"<td>{cell}</td>" for cell in line) for line in lines)
    body = "\n".join(f"<tr>{row}</tr>" for row in (head, *rows))
    return f'<div class="scroll"><table>\n{body}\n</table></div>'


def data_url(content: bytes, kind: str) -> str:
    """A file as a URL that holds it; `kind` is its type, such as image/png."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def picture_url(picture: Image.Image, kind: str = "JPEG", side: int | None = None) -> str:
    """A picture as a URL, reduced to at most `side` pixels a side."""
    if side is not None and max(picture.size) > side:
        picture = picture.copy()
        picture.thumbnail((side, side))
    buffer = io.BytesIO()
    picture.save(buffer, kind, quality=85)  # PNG has no use for a quality
    return data_url(buffer.getvalue(), f"image/{kind.lower()}")
