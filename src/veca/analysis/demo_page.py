"""The demo's report: one HTML file that needs nothing beside it."""

import base64
import html
import io
from collections.abc import Sequence
from pathlib import Path
from string import Template

from PIL import Image
from torch import Tensor

from veca.analysis.demo import BudgetRow, Demo, PhotoViews, View

TEMPLATE = Path(__file__).with_suffix(".html")

UNTRAINED = """<div class="note"><b>These weights are untrained.</b> Times, FLOPs and pairs are
real: they do not depend on weights. The pictures show how the machine works, not what it has
learned: it has learned nothing.</div>"""

KINDS = (
    ("colours", "features of the patches"),
    ("first", "what the first core reads"),
    ("regions", "which core reads where"),
    ("paths", "the cores' ways over the layers"),
)
"""Field of a view and what it is called, in the order of the rows."""


def page(demo: Demo) -> str:
    """The whole report."""
    width, height = demo.pixels
    return Template(TEMPLATE.read_text("utf-8")).substitute(
        backgrounds="\n".join(map(_background, range(len(demo.photos)), demo.photos)),
        model=html.escape(demo.told.model),
        machine=html.escape(demo.told.machine),
        command=html.escape(demo.told.command),
        note="" if demo.told.trained else UNTRAINED,
        rows=_rows(demo.rows),
        width=width,
        height=height,
        precision=demo.precision,
        cores=demo.rows[-1].budget,
        photos="\n".join(map(_photo, range(len(demo.photos)), demo.photos)),
    )


def _rows(rows: Sequence[BudgetRow]) -> str:
    """The table over budgets, with bars for the times."""
    slowest = max(row.milliseconds for row in rows)
    return "\n".join(
        "<tr>"
        f"<td>{row.budget} cores</td>"
        f'<td class="time"><span class="bar" style="width:{90 * row.milliseconds / slowest:.0f}px">'
        f'</span>{row.milliseconds:.0f} ms <span class="quiet">[{row.quartiles[0]:.0f}&ndash;'
        f"{row.quartiles[1]:.0f}]</span></td>"
        f"<td>{row.gflops:.1f}</td><td>{row.pairs:,}</td><td>{row.pairs_share:.2%}</td>"
        f"<td>{row.image_similarity:.3f}</td><td>{row.patch_similarity:.3f}</td></tr>"
        for row in rows
    )


def _background(number: int, photo: PhotoViews) -> str:
    """A photo stands once in the page, below every view of it."""
    width, height = photo.picture.size
    address = _address(photo.picture, "JPEG")
    return f".p{number} {{ background-image: url({address}); aspect-ratio: {width} / {height}; }}"


def _photo(number: int, photo: PhotoViews) -> str:
    """All views of one photo: a row for each kind, a column for each budget."""
    columns = f"grid-template-columns: 1.7fr 6.4rem repeat({len(photo.views)}, 1fr)"
    heads = "".join(f'<div class="head">{view.budget} cores</div>' for view in photo.views)
    rows = "".join(
        f'<div class="name">{label}</div>'
        + "".join(f'<div class="panel p{number}">{_view(view, kind)}</div>' for view in photo.views)
        for kind, label in KINDS
    )
    return (
        f"<h2>{html.escape(photo.name)}</h2>"
        f'<div class="scroll"><div class="views" style="{columns}">'
        f'<div class="photo"><div class="panel p{number}"></div></div><div></div>{heads}{rows}'
        "</div></div>"
    )


def _view(view: View, kind: str) -> str:
    """One panel's content: pixels of patches, or lines."""
    if kind == "paths":
        return view.paths
    patches: Tensor = getattr(view, kind)
    picture = Image.fromarray(patches.numpy())
    return f'<img alt="" src="{_address(picture, "PNG")}">'


def _address(picture: Image.Image, kind: str) -> str:
    """A picture inside an address."""
    buffer = io.BytesIO()
    picture.save(buffer, kind, quality=85)  # PNG has no use for a quality
    return f"data:image/{kind.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"
