"""The page of an evaluation, `report.html`: what `report.md` says, with charts and pictures.

Pictures are those that `probe/pictures.py` saved beside the rows, so that the page is written anew
whenever a report is continued. Its texts are names of folders, classes and models, so all of them
are escaped.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64
from numpy import ndarray
from PIL import Image
from torch import Tensor

from veca.analysis.page import data_url, document, picture_url, table, text
from veca.probe.heads import EXAMPLES_FOLDER, find_results, result_key
from veca.probe.report import (
    COMPARISON_NAME,
    Block,
    Code,
    Heading,
    Items,
    Table,
    read_report,
    report_blocks,
)
from veca.probe.rows import ModelKey, Row, Section, row_from_json
from veca.runtime.files import write_atomic
from veca.runtime.tensors import load_tensors

PAGE_NAME = "report.html"

MAX_BYTES = 8 * 2**20
"""Of charts and pictures; those of further results stay in their files."""

MAX_NUMBERED = 12
"""Classes of a confusion matrix with numbers; a larger one is a picture."""

MAX_MATRIX = 1000
"""Classes of a confusion matrix."""

MAX_CONFUSIONS = 8
"""Pairs of classes that are listed."""

TEAL, ORANGE = (11, 110, 117), (196, 72, 20)
"""Of right and wrong predictions, visible on light and dark paper."""

DARK = 0.8
"""Opacity of a cell above which white is easier to read on it than black."""

LEAD = (
    "A small head was fitted to features of training images and measured on other images. The "
    "network that gives the features was not trained. A budget is the number of cores that take "
    "part: more of them cost more time."
)

NO_CHARTS = (
    "The page has no charts, since matplotlib is not installed (pip install 'veca[figures]')."
)

CONFIDENCE = (
    "In bold the prediction with its share of the probability (knn: of the votes), which is not "
    "calibrated; then the label."
)

Chart = Callable[[Section], bytes | None]
"""Draws an SVG for a section; None if there is nothing to draw."""


def write_page(folder: Path, chart: Chart | None = None) -> Path:
    """Write the page of the report in a folder; without `chart`, as without matplotlib, it says so.

    One process at a time may call it for a folder.
    """
    rows, path = read_report(folder), folder / COMPARISON_NAME
    compared = json.loads(path.read_text("utf-8")) if path.exists() else []
    about = list(dict.fromkeys(f"{row.task} on {row.data}" for row in rows))
    title = about[0] if len(about) == 1 else f"{len(about)} evaluations"
    parts = [f"<h1>Frozen features: {text(title)}</h1>", f"<p>{LEAD}</p>", *_summary(rows)]
    if chart is None:
        parts.append(f'<p class="quiet">{text(NO_CHARTS)}</p>')
    pictures, blocks = _Pictures(folder, chart), list(report_blocks(rows, compared))
    if len(about) > 1:
        titles = [block.text for block in blocks if isinstance(block, Heading)]
        links = (f'<li><a href="#{_anchor(title)}">{text(title)}</a></li>' for title in titles)
        parts.append(f"<ul>{''.join(links)}</ul>")
    parts += [_html(block, pictures) for block in blocks]
    parts += pictures.left_out()
    write_atomic(folder / PAGE_NAME, [document(f"veca probe: {title}", "\n".join(parts))])
    return folder / PAGE_NAME


def _summary(rows: Sequence[Row]) -> Iterator[str]:
    """The models, and a warning about untrained ones."""
    keys = dict.fromkeys(ModelKey.of(row) for row in rows)
    names = dict.fromkeys(f"{key.model} ({key.role})" for key in keys)
    yield f'<p class="quiet">{text(", ".join(names))}</p>'
    untrained = dict.fromkeys(key.model for key in keys if not key.trained)
    if untrained:
        yield f'<div class="note">Untrained: {text(", ".join(untrained))}.</div>'


def _html(block: Block, pictures: Callable[[Section], str]) -> str:
    """A part of the report."""
    match block:
        case Section():
            return pictures(block)
        case Heading():
            return f'<h2 id="{_anchor(block.text)}">{text(block.text)}</h2>'
        case Table():
            found = block.without_empty()
            titles, *lines = ([*map(text, line)] for line in (found.titles, *found.lines))
            return table(titles, lines)
        case Items():
            items = "\n".join(f"<li>{text(item)}</li>" for item in block.texts)
            return f'<ul class="quiet">\n{items}\n</ul>'
        case Code():
            return f"<pre>{'<br>'.join(map(text, block.lines))}</pre>"
        case str():
            words = "<br>".join(map(text, block.splitlines()))
            return '<p class="quiet">' + re.sub("`(.+?)`", r"<code>\1</code>", words) + "</p>"


def _anchor(title: str) -> str:
    """Where a link to a part leads."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "part"


class _Pictures:
    """Charts and saved pictures of sections, until the page is large enough."""

    def __init__(self, folder: Path, chart: Chart | None) -> None:
        self._chart, self._room, self._skipped = chart, MAX_BYTES, 0
        self._saved = find_results(folder / EXAMPLES_FOLDER)

    def __call__(self, section: Section) -> str:
        """The chart and the pictures of a section as HTML."""
        found = []
        drawn = self._chart(section) if self._chart is not None else None
        if drawn is not None:
            url = data_url(drawn, "image/svg+xml")
            alt = "Quality against time; labels are budgets"
            found.append(f'<div class="scroll"><img class="chart" alt="{alt}" src="{url}"></div>')
        keys = {result_key(one.row, seed): None for one in section.means for seed in one.seeds}
        for path in dict.fromkeys(self._saved[key] for key in keys if key in self._saved):
            try:
                found.append("\n".join(_examples(*load_tensors(path))))
            except (OSError, ValueError, KeyError, IndexError):
                continue  # damaged, or of another version
        shown = []
        for part in found:
            if len(part) <= self._room:
                self._room -= len(part)
                shown.append(part)
            else:
                self._skipped += 1
        return "\n".join(shown)

    def left_out(self) -> list[str]:
        """A sentence on what is missing, if anything is."""
        if not self._skipped:
            return []
        size = f"{MAX_BYTES // 2**20} MB"
        return [
            f'<p class="quiet">Charts and galleries left out, to keep this page below {size}: '
            f"{self._skipped}. Their pictures are in {EXAMPLES_FOLDER}/.</p>"
        ]


def _examples(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> Iterator[str]:
    """The confusion matrix and the single images of a result."""
    row, items = row_from_json(metadata["row"]), metadata["items"]
    cores = "" if row.budget is None else f", {row.budget} cores"
    name = text(f"{row.model}{cores}, {row.resolution} px")
    classes = metadata["classes"]
    if "truth" in tensors and len(classes) <= MAX_MATRIX:
        counts = np.zeros((len(classes), len(classes)), np.int64)
        np.add.at(counts, (tensors["truth"].numpy(), tensors["predicted"].numpy()), 1)
        yield f"<h3>Confusion matrix of {name}</h3>"
        yield '<p class="quiet">Rows are labels, columns are predictions.</p>'
        yield f'<div class="beside">{_matrix(counts, classes)}{_confusions(counts, classes)}</div>'
    if not items:
        return
    single = all(len(item["captions"]) == 1 for item in items)
    title = "Most confident mistakes" if single else "Best, median and worst image"
    yield f"<h3>{title} of {name}</h3>"
    if single:
        yield f'<p class="quiet">{CONFIDENCE}</p>'
    yield '<div class="gallery">' if single else "<div>"
    for number, item in enumerate(items):
        images = [tensors[f"{number}/{at}"].numpy() for at in range(len(item["captions"]))]
        yield _example(item, images)
    yield "</div>"


def _example(item: Mapping[str, Any], images: Sequence[ndarray]) -> str:
    """One test image, with its maps if it has any."""
    figures = "".join(
        f'<figure><img alt="" src="{data_url(image.tobytes(), "image/jpeg")}">'
        f"<figcaption>{text(caption)}</figcaption></figure>"
        for image, caption in zip(images, item["captions"], strict=True)
    )
    legend = "".join(
        f'<span class="key"><i style="background:{text(color)}"></i>{text(name)}</span>'
        for name, color in item["legend"]
    )
    return (
        f'<div class="example"><p><b>{text(item["title"])}</b></p>'
        f'<div class="figures">{figures}</div>'
        f'<p class="quiet">{legend}{text(item["name"])}</p></div>'
    )


def _matrix(counts: Int64[ndarray, "K K"], classes: Sequence[str]) -> str:
    """A row for each label and a column for each prediction, colored by their share."""
    shares = np.sqrt(counts / np.maximum(counts.sum(1, keepdims=True), 1))  # rare ones are visible
    if len(classes) > MAX_NUMBERED:
        picture = np.zeros((*counts.shape, 4), np.uint8)
        picture[..., :3] = ORANGE
        picture[np.diag_indices(len(classes))] = (*TEAL, 0)
        picture[..., 3] = np.maximum(255 * shares, 12).round()
        url = picture_url(Image.fromarray(picture), "PNG")
        return f'<img class="matrix" alt="Confusion matrix" src="{url}">'
    head = "".join(f"<th><span>{text(name)}</span></th>" for name in classes)
    lines = []
    for label, name in enumerate(classes):
        cells = "".join(
            f'<td style="background:rgb({" ".join(map(str, TEAL if label == at else ORANGE))}'
            f' / {shares[label, at]:.2f}){";color:#fff" if shares[label, at] > DARK else ""}">'
            f"{counts[label, at] or ''}</td>"
            for at in range(len(classes))
        )
        lines.append(f"<tr><th>{text(name)}</th>{cells}</tr>")
    body = "\n".join([f"<tr><th></th>{head}</tr>", *lines])
    return f'<div class="scroll"><table class="matrix">\n{body}\n</table></div>'


def _confusions(counts: Int64[ndarray, "K K"], classes: Sequence[str]) -> str:
    """The pairs of classes that are taken for each other most often."""
    wrong = counts - np.diag(np.diag(counts))
    order = np.argsort(-wrong, axis=None, kind="stable")[:MAX_CONFUSIONS]
    pairs = [divmod(int(place), len(classes)) for place in order]
    lines = [
        [text(classes[label]), text(classes[at]), f"{wrong[label, at]} of {counts[label].sum()}"]
        for label, at in pairs
        if wrong[label, at]
    ]
    return table(["label", "most often taken for", "images"], lines) if lines else ""
