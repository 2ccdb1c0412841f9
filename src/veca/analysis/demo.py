"""The demo: photos at several budgets, as numbers, small pictures and one self-contained page.

`run_demo` computes, `page` fills in `demo.html`.
"""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import NamedTuple

import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from veca.analysis.page import document, picture_url, table, text
from veca.analysis.visualize import (
    Basis,
    common_basis,
    core_colors,
    core_segments,
    cosine_map,
    heat,
    mark_svg,
    paths_svg,
    pca_colors,
    regions,
    segment_colors,
    similarity_colors,
)
from veca.backbone.model import VECA, Features
from veca.data.transforms import IMAGENET, prepare
from veca.runtime.timing import Effort, Quartiles, measure

SAMPLES = ("chelsea.png", "astronaut.png", "coffee.png", "motorcycle_left.png", "rocket.jpg")
"""Photographs that ship with scikit-image, so nothing is downloaded."""

MAX_PATCHES = 2**16
"""Of a photo: it is encoded at every budget, with maps of all cores, and drawn patch by patch."""

EFFORT = Effort(rounds=5, seconds=1.0, most_seconds=8.0)


def sample_photos() -> list[Path]:
    """Paths of the sample photographs."""
    found = importlib.util.find_spec("skimage")
    if found is None or found.origin is None:
        raise ValueError(
            "the sample photos come with scikit-image, which is not installed; install "
            "veca[samples], or name pictures of your own."
        )
    folder = Path(found.origin).parent / "data"
    return [folder / name for name in SAMPLES if (folder / name).is_file()]


class BudgetRow(NamedTuple):
    """What one budget costs, and how close its features are to those of all cores."""

    budget: int
    ms: Quartiles
    gflops: float
    pairs: int
    pairs_share: float
    """Relative to full attention among the patches, N squared."""
    image_similarity: float
    patch_similarity: float


class View(NamedTuple):
    """One photo at one budget: pictures with one pixel per patch, and drawings as SVG."""

    budget: int
    colors: UInt8[Tensor, "rows columns 3"]
    first: UInt8[Tensor, "rows columns 4"]
    regions: UInt8[Tensor, "rows columns 4"]
    objects: UInt8[Tensor, "rows columns 4"]
    paths: str
    similarity: UInt8[Tensor, "rows columns 3"]
    mark: str
    """The patch that `similarity` compares with."""


class PhotoViews(NamedTuple):
    """One photo as the model saw it, and its views."""

    name: str
    picture: Image.Image
    views: list[View]


class Demo(NamedTuple):
    """All numbers and pictures of the page."""

    pixels: tuple[int, int]
    """Width and height of the image that was timed."""
    precision: str
    rows: list[BudgetRow]
    photos: list[PhotoViews]


class _Encoded(NamedTuple):
    """A photo and its features at each budget, the largest last."""

    name: str
    pixels: Float[Tensor, "1 3 height width"]
    features: list[Features]


def run_demo(model: VECA, photos: Sequence[Path], budgets: Sequence[int], size: int) -> Demo:
    """Encode photos at every budget and with all cores, which the others are compared with."""
    budgets, seen = sorted({*budgets, model.config.cores}), []
    with torch.inference_mode():
        for photo in photos:
            patch_size = model.config.patch_size
            image = prepare(photo, size=size, patch_size=patch_size, max_patches=MAX_PATCHES)
            pixels, name = image.pixels.unsqueeze(0), photo.stem.replace("_", " ")
            seen.append(_Encoded(name, pixels, [model(pixels, budget) for budget in budgets]))
        basis = common_basis([item.patch_map[0] for one in seen for item in one.features])
        views = [_views(model, one, budgets, basis) for one in seen]
    rows = _rows(model, seen, budgets)
    height, width = seen[0].pixels.shape[2:]
    return Demo((width, height), model.precision, rows, views)


def _views(model: VECA, seen: _Encoded, budgets: Sequence[int], basis: Basis) -> PhotoViews:
    """The pictures of one photo."""
    pixels = IMAGENET.denormalize(seen.pixels[0]).clamp(0, 1) * 255
    picture = Image.fromarray(pixels.round().byte().permute(1, 2, 0).numpy())
    colors = core_colors(model.core_bank(1, budgets[-1])[1][0].tanh())
    last = [model.layer_maps(seen.pixels, [-1], budget)[0] for budget in budgets]
    # The patch that the image feature reads most with all cores, the same at every budget.
    row, column = divmod(int(last[-1].core_maps[0, 0].argmax()), seen.features[0].grid[1])
    views = []
    for budget, features, maps in zip(budgets, seen.features, last, strict=True):
        patch_map = features.patch_map[0]
        paths = model.core_paths(seen.pixels, budget)[:, 0]
        views.append(
            View(
                budget,
                colors=pca_colors(patch_map, basis),
                first=heat(maps.core_maps[0, 0]),
                regions=regions(maps.core_maps[0], colors[:budget]),
                objects=segment_colors(core_segments(maps.patch_maps[0]), colors),
                paths=paths_svg(paths, colors[:budget], picture.size),
                similarity=similarity_colors(cosine_map(patch_map, patch_map[:, row, column])),
                mark=mark_svg((row, column), features.grid),
            )
        )
    return PhotoViews(seen.name, picture, views)


def _rows(model: VECA, seen: Sequence[_Encoded], budgets: Sequence[int]) -> list[BudgetRow]:
    """Cost of the first photo at every budget, similarity over all photos."""
    pixels = seen[0].pixels
    height, width = pixels.shape[2:]
    cases = {str(budget): lambda budget=budget: model(pixels, budget) for budget in budgets}
    timings = measure(cases, EFFORT)
    patches = seen[0].features[0].patches.shape[1]
    rows = []
    for number, budget in enumerate(budgets):
        cost = model.cost(height, width, budget)
        pairs = [(one.features[number], one.features[-1]) for one in seen]
        images = [F.cosine_similarity(a.image, b.image).mean() for a, b in pairs]
        maps = [F.cosine_similarity(a.patches, b.patches, dim=-1).mean() for a, b in pairs]
        rows.append(
            BudgetRow(
                budget,
                ms=timings[str(budget)].milliseconds,
                gflops=cost.flops / 1e9,
                pairs=cost.pairs,
                pairs_share=cost.pairs / patches**2,
                image_similarity=torch.stack(images).mean().item(),
                patch_similarity=torch.stack(maps).mean().item(),
            )
        )
    return rows


WIDE = "body { max-width: none; padding: 2rem clamp(.9rem, 3vw, 4rem) 3.5rem; }"

UNTRAINED = """<div class="note"><b>These weights are untrained.</b> Times, FLOPs and pairs do not
depend on weights, but the pictures show only how the model works, not what it has learned.</div>"""

SCALE = '0<i class="scale"></i>1'

KINDS = {
    "colors": ("Features", "Three principal components of the patch features as red, green and "
               "blue. A color means the same at all budgets and in all photos."),
    "first": ("What the first core reads", "Clear where a patch adds much to the first core, the "
              "image feature, in the last layer."),
    "regions": ("Which core reads where", "Each patch in the color of the core that reads it most, "
                "against that core's own mean. A core keeps its color in all pictures."),
    "objects": ("Objects", "Each patch in the color of the core that it reads most."),
    "paths": ("Paths", "From a ring, where a core starts, to a disc, where it is in the last "
              "layer. The large one is the first core."),
    "similarity": ("Similarity", f"Cosine of every patch with the circled one. {SCALE}"),
}  # fmt: skip
"""Fields of a view with their names and legends, in the order of the rows."""


def page(  # noqa: PLR0913 - what the report says
    demo: Demo, *, model: str, trained: bool, machine: str, command: str, explore: str
) -> bytes:
    """The whole report."""
    width, height = demo.pixels
    style = [WIDE] + [  # the page holds each photo once, as the background of all its views
        f".p{number} {{ background-image: url({picture_url(photo.picture)}); "
        f"--ratio: {photo.picture.width / photo.picture.height:.4f}; }}"
        for number, photo in enumerate(demo.photos)
    ]
    template = Template(Path(__file__).with_suffix(".html").read_text("utf-8"))
    body = template.substitute(
        model=text(model),
        machine=text(machine),
        command=text(command),
        explore=text(explore),
        note="" if trained else UNTRAINED,
        table=_budget_table(demo.rows),
        width=width,
        height=height,
        precision=demo.precision,
        cores=demo.rows[-1].budget,
        photos="\n".join(map(_photo, range(len(demo.photos)), demo.photos)),
    )
    return document("veca demo: one model, several budgets", body, "\n".join(style))


def _budget_table(rows: Sequence[BudgetRow]) -> str:
    """The table over budgets, with bars for the times."""
    slowest = max(row.ms.median for row in rows)
    titles = ["budget", "time here", "GFLOPs", "pairs", "of full attention",
              "similarity,<br>image", "similarity,<br>patches"]  # fmt: skip
    lines = [
        (
            f"{row.budget} cores",
            f'<span class="bar" style="width:{90 * row.ms.median / slowest:.0f}px"></span>'
            f'{row.ms.median:.0f} ms <span class="quiet">[{row.ms.low:.0f}&ndash;'
            f"{row.ms.high:.0f}]</span>",
            f"{row.gflops:.1f}",
            f"{row.pairs:,}",
            f"{row.pairs_share:.2%}",
            f"{row.image_similarity:.3f}",
            f"{row.patch_similarity:.3f}",
        )
        for row in rows
    ]
    return table(titles, lines)


def _photo(number: int, photo: PhotoViews) -> str:
    """All views of one photo: a row for each kind, a column for each budget."""
    first = f"p{number}-{next(iter(KINDS))}"
    rows, original = [], _panel(number, "", "photo", f"p{number}-photo", first)
    for kind, (name, legend) in KINDS.items():
        row = f"p{number}-{kind}"
        panels = "".join(_view(number, view, kind, row) for view in photo.views)
        rows.append(
            f'<div class="views" id="{row}" style="--count: {len(photo.views)}">'
            f'<div class="name">{original}<b>{name}</b>{legend}</div>{panels}</div>'
        )
        original = ""  # beside the first row only
    return "\n".join([f"<h2>{text(photo.name)}</h2>", *rows])


def _view(number: int, view: View, kind: str, row: str) -> str:
    """One view of a photo."""
    content = getattr(view, kind)
    if kind != "paths":
        content = f'<img alt="" src="{picture_url(Image.fromarray(content.numpy()), "PNG")}">'
    if kind == "similarity":
        content += view.mark
    name = f"{KINDS[kind][0]}, {view.budget} cores"
    content += f"<span>{view.budget} cores</span>"
    return _panel(number, content, name, f"{row}-{view.budget}", row)


def _panel(number: int, content: str, name: str, place: str, row: str) -> str:
    """A photo with something over it, which a click enlarges and another takes back to its row."""
    return (
        f'<div class="panel p{number}" id="{place}">{content}'
        f'<a class="open" href="#{place}" aria-label="Enlarge: {name}"></a>'
        f'<a class="close" href="#{row}" aria-label="Close"></a></div>'
    )
