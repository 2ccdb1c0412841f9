"""`veca figures`: what a model sees in images, as figures."""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from veca.cli.flags import read_flags, texts, whole_numbers
from veca.data.images import ImageError
from veca.data.listing import ImageEntry, free_stem, list_images, named_problem, open_image
from veca.probe.models import find_model
from veca.runtime.device import Precision, pick_device
from veca.runtime.files import make_folder, printable, write_atomic
from veca.weights.checkpoint import NamedModel, load_or_build

DESCRIPTION = """Draw what a model sees in images: one file per image and figure.

- features: dense features as false colors at several resolutions, with one common basis
- similarity: cosine of every patch to marked patches and to the image feature
- cores: attention of the cores over layers and budgets, and the most different cores
- paths: how the cores move over the layers
- objects: segments without labels, by the core read most and by clusters of features
- evolution: core states of all images, layer by layer (UMAP; from 8 images on)
- trade-off: quality against budget and cost, from --report

Example: veca figures veca-tiny holiday.jpg --only similarity --point 120,80 --out figures"""

OF_CORES = ("cores", "paths", "objects", "evolution")
NAMES = ("features", "similarity", *OF_CORES, "trade-off")

MIN_EVOLUTION = 8
MAX_EVOLUTION = 200
"""Images from which, and up to which, the core states are drawn."""

Draw = Callable[[str | bytes], Any]
"""From an image to a figure of matplotlib, which is an extra."""


COMMON = ("model", "images", "out", "only", "point", "teacher", "report", "budgets", "size")
"""Flags that --help shows."""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """The flags of the command."""

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """a folder, .safetensors file, bundled name, hub name, or a size (untrained)"""

    images: Annotated[
        tuple[str, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="IMAGES...", help_behavior_hint="(one or more)"),
    ] = ()
    """images, folders, .tar shards, .txt or .lst lists, patterns in quotes"""

    out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("figures")
    """folder of the figures"""

    only: Annotated[str | None, tyro.conf.arg(metavar="NAME,...")] = None
    """figures to draw; all that are possible if not given"""

    point: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="X,Y")] = ()
    """a patch for similarity, in pixels of the original image; repeat the flag for more"""

    teacher: Annotated[str | None, tyro.conf.arg(metavar="T")] = None
    """a teacher whose features are drawn below those of the model"""

    baseline: Annotated[str | None, tyro.conf.arg(metavar="M")] = None
    """another model whose features are drawn below those of the model"""

    report: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """report.json, quality.json or bench.json for trade-off"""

    file_format: Annotated[Literal["png", "pdf", "svg"], tyro.conf.arg(name="format")] = "png"
    """of the files"""

    projection: Literal["pca", "umap"] = "pca"
    """how features become colors; umap as in the paper's figures, which is slower"""

    budgets: Annotated[str | None, tyro.conf.arg(metavar="CORES,...")] = None
    """numbers of cores to compare; 8, 16 and all if not given"""

    resolutions: Annotated[str, tyro.conf.arg(metavar="PIXELS,...")] = "256,512,768,1024"
    """short sides of the image for features"""

    size: int = 512
    """short side of the image in pixels for the other figures"""

    max_images: int = 8
    """images to draw; of more, only evolution sees all"""

    device: str = "auto"
    """where models run"""

    precision: Precision = "auto"
    """fp32, bf16 or auto (bf16 where the device computes it natively)"""

    def write(self, figure: Any, stem: str) -> None:  # noqa: ANN401 - of matplotlib
        """Write a figure and print its path."""
        from veca.analysis.figures import to_bytes  # noqa: PLC0415 - matplotlib is an extra

        path = self.out / f"{stem}.{self.file_format}"
        write_atomic(path, [to_bytes(figure, self.file_format)])
        print(printable(str(path)))


def figures(words: Sequence[str]) -> None:
    """Run the command on the words after its name."""
    flags = read_flags(Flags, words, prog="veca figures", description=DESCRIPTION, common=COMMON)
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError(
            "veca figures needs matplotlib, which is not installed; run "
            "`pip install 'veca[figures]'`."
        )
    wanted = _wanted(flags)
    make_folder(flags.out)
    if "trade-off" in wanted and flags.report is not None:
        from veca.analysis.figures import trade_off  # noqa: PLC0415 - matplotlib is an extra

        flags.write(trade_off(flags.report), "trade-off")
    if wanted != ("trade-off",):
        _draw(flags, wanted, _entries(flags.model, flags.images))


def _draw(flags: Flags, wanted: Sequence[str], entries: Sequence[ImageEntry]) -> None:
    """Draw the figures of images."""
    found = load_or_build(flags.model, device=pick_device(flags.device), precision=flags.precision)
    if not found.trained:
        print("These weights are untrained: the figures show how the model works, no more.")
    if found.model.config.attention == "full" and flags.only is None:
        print(f"Not drawn: {', '.join(OF_CORES)}, since a model with full attention has no cores.")
        wanted = [name for name in wanted if name not in OF_CORES]
    draws = {name: draw for name, draw in _draws(flags, found).items() if name in wanted}
    taken = set[str]()
    failed = [
        entry for entry in entries[: flags.max_images] if not _drawn(flags, entry, draws, taken)
    ]
    if len(entries) > flags.max_images:
        print(f"Drawn: {flags.max_images} of {len(entries)} images; --max-images draws more.")
    if "evolution" in wanted and (flags.only is not None or _can_show_evolution(entries)):
        _draw_evolution(flags, found, entries)
    if failed:
        raise SystemExit(1)


def _drawn(flags: Flags, entry: ImageEntry, draws: Mapping[str, Draw], taken: set[str]) -> bool:
    """Draw the figures of one image; False if it cannot be read."""
    stem = free_stem(entry.name, taken)
    try:
        for name, draw in draws.items():
            flags.write(draw(_source(entry)), f"{stem}_{name}")
    except (ImageError, OSError) as error:
        print(named_problem(entry.name, error))
        return False
    return True


def _draws(flags: Flags, found: NamedModel) -> dict[str, Draw]:
    """The figures of one image, by name."""
    from veca.analysis import image_figures as drawn  # noqa: PLC0415 - matplotlib is an extra

    given: dict[str, Any] = {"name": found.name}
    of_cores = {**given, "size": flags.size}
    if flags.budgets is not None:
        of_cores["budgets"] = whole_numbers("--budgets", flags.budgets)
    beside = [
        find_model(name, pick_device(flags.device))
        for name in (flags.teacher, flags.baseline)
        if name is not None
    ]
    sides = whole_numbers("--resolutions", flags.resolutions)
    points = [_point(text) for text in flags.point]
    colored: dict[str, Any] = {"projection": flags.projection}
    return {
        "features": partial(
            drawn.features, found.model, resolutions=sides, others=beside, **colored, **given
        ),
        "similarity": partial(
            drawn.similarity, found.model, points=points, size=flags.size, others=beside, **given
        ),
        "cores": partial(drawn.cores, found.model, **colored, **of_cores),
        "paths": partial(drawn.paths, found.model, **of_cores),
        "objects": partial(drawn.objects, found.model, **of_cores),
    }


def _draw_evolution(flags: Flags, found: NamedModel, entries: Sequence[ImageEntry]) -> None:
    """Draw the core states of all images; folders are classes if there are several."""
    step = -(-len(entries) // MAX_EVOLUTION)  # spread over folders, which follow each other
    entries = entries[::step]
    from veca.analysis.image_figures import evolution  # noqa: PLC0415 - matplotlib is an extra

    labels = [Path(entry.name).parent.name for entry in entries]
    sources = [_source(entry) for entry in entries]
    classes = labels if len(set(labels)) > 1 else None
    flags.write(evolution(found.model, sources, classes, name=found.name), "evolution")


def _wanted(flags: Flags) -> tuple[str, ...]:
    """Names of the figures to draw; a trade-off needs a report."""
    if flags.only is None:
        return NAMES if flags.report is not None else NAMES[:-1]
    wanted = texts("--only", flags.only)
    if unknown := [name for name in wanted if name not in NAMES]:
        raise ValueError(f"--only got {', '.join(unknown)}; the figures are {', '.join(NAMES)}.")
    if "trade-off" in wanted and flags.report is None:
        raise ValueError(
            "trade-off needs --report FILE: the report.json or quality.json of veca probe, or the "
            "bench.json of veca bench."
        )
    return wanted


def _entries(model: str, images: Sequence[str]) -> list[ImageEntry]:
    """The images that were named."""
    if not images:
        raise ValueError(
            f"no image is named after the model, {model}; give files, folders, .tar shards, lists "
            "or patterns, as in: veca figures veca-tiny holiday.jpg"
        )
    found = list_images(images)
    for row, problem in found.problems.items():
        print(printable(f"{found.table[row].name}: {problem}"))
    return [found.table[row] for row in found.rows.tolist() if row not in found.problems]


def _point(text: str) -> tuple[int, int]:
    """A pixel from the flag."""
    try:
        x, y = map(int, text.split(","))
    except ValueError as error:
        raise ValueError(f"--point got {text!r}; give x,y in pixels, such as 120,80.") from error
    return x, y


def _source(entry: ImageEntry) -> str | bytes:
    """What figures open again and again: a path, or the bytes of a part of a tar shard."""
    with open_image(entry) as file:
        return file if isinstance(file, str) else file.read()


def _can_show_evolution(entries: Sequence[ImageEntry]) -> bool:
    """Whether there are enough images and UMAP is installed; says what is missing otherwise."""
    if len(entries) < MIN_EVOLUTION:
        return False
    if importlib.util.find_spec("umap") is None:
        print("Not drawn: evolution, which needs umap-learn (`pip install 'veca[figures]'`).")
        return False
    return True
