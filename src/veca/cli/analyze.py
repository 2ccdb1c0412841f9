"""`veca analyze`: what the cores of models do on a set of images, in numbers."""

import importlib.util
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from veca.cli.flags import command_line, read_flags, texts, whole_numbers
from veca.data.images import DataError, ImageError
from veca.data.listing import ImageEntry, list_images, named_problem, open_image
from veca.runtime import VERSION
from veca.runtime.device import Precision, pick_device
from veca.runtime.files import make_folder, printable, write_atomic
from veca.runtime.logging import Tracker, log_to_console, logger, progress
from veca.weights.checkpoint import NamedModel, load_or_build

if TYPE_CHECKING:
    from veca.analysis.study import Picture, StudyConfig
    from veca.analysis.study_report import ModelStudy

DESCRIPTION = """Measure what the cores of a model do on a set of images.

Size and roundness of what cores read, agreement with object masks, redundancy, stability under
changes of the image and of the budget, paths, drift over resolutions, order, and robustness to
corruptions and attacks. Prints a table and writes analysis.json and a page of plots.

Example: veca analyze veca-tiny photos --limit 100 --baseline tiny --out build/analysis"""

MIN_IMAGES = 8

COMMON = ("model", "images", "masks", "out", "baseline", "limit")
"""Flags that --help shows."""

NEEDED = ("matplotlib", "scipy")


@dataclass(frozen=True, kw_only=True)
class Flags:
    """The flags of the command."""

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """a folder, .safetensors file, bundled name, hub name, or a size (untrained)"""

    images: Annotated[
        tuple[str, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="IMAGES...", help_behavior_hint="(one or more)"),
    ]
    """images, folders, .tar shards, .txt or .lst lists, patterns in quotes; several folders are the
    classes of 20-NN"""

    masks: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """folder of PNG masks with the names of the images: classes, 0 for the background, 255 ignored;
    the most frequent class is that of 20-NN"""

    out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("analysis")
    """folder of analysis.json and analysis.png"""

    baseline: Annotated[str | None, tyro.conf.arg(metavar="M,...")] = None
    """other models to measure beside it, such as one with full attention"""

    limit: int = 200
    """images to use, drawn with the seed; memory grows with them"""

    budgets: Annotated[str, tyro.conf.arg(metavar="CORES,...")] = "8,16,32,64"
    """numbers of cores"""

    size: int = 256
    """side of the central square that models see, in pixels"""

    resolutions: Annotated[str, tyro.conf.arg(metavar="PIXELS,...")] = "256,512,768,1024"
    """sides over which features drift"""

    robust: int = 32
    """images that are corrupted; half of them are attacked"""

    drift: int = 8
    """images that are seen at all resolutions"""

    seed: int = 0
    """of the images, the noise, the attacks and the random cores"""

    device: str = "auto"
    """where models run"""

    precision: Precision = "fp32"
    """fp32, bf16 or auto (bf16 where the device computes it natively)"""


def analyze(words: Sequence[str]) -> None:
    """Run the command on the words after its name."""
    flags = read_flags(Flags, words, prog="veca analyze", description=DESCRIPTION, common=COMMON)
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise ValueError(
            f"veca analyze needs {' and '.join(missing)}, which is not installed; run "
            "`pip install 'veca[figures]'`."
        )
    started, entries = time.time(), _chosen(flags)
    whole_numbers("--budgets", flags.budgets)
    from veca.analysis import figures, study_report  # noqa: PLC0415 - of an extra

    place = pick_device(flags.device)
    names = dict.fromkeys([flags.model, *texts("--baseline", flags.baseline or flags.model)])
    models = [load_or_build(name, device=place, precision=flags.precision) for name in names]
    make_folder(flags.out)
    with log_to_console():
        studies = [_study(flags, model, entries) for model in models]
    table = study_report.table_rows(studies)
    _print(table, models)
    content = {
        "format": 1,
        "version": VERSION,
        "command": command_line("analyze", words),
        "date": time.strftime("%Y-%m-%d", time.gmtime(started)),
        "seconds": round(time.time() - started),
        **_facts(flags, models, entries),
        "headlines": {text: cells for text, *cells in table},
        "rows": [{"model": one.name, **asdict(row)} for one in studies for row in one.rows],
    }
    title = f"{', '.join(names)} on {len(entries)} images at {flags.size} px"
    page = figures.to_bytes(study_report.analysis_figure(studies, title), "png")
    write_atomic(flags.out / "analysis.json", [_json(content)])
    write_atomic(flags.out / "analysis.png", [page])
    print(printable(f"Written: {flags.out / 'analysis.json'}, {flags.out / 'analysis.png'}"))


def _chosen(flags: Flags) -> list[ImageEntry]:
    """Images drawn with the seed, with masks if a folder of masks is given."""
    found = list_images(flags.images)
    entries = [found.table[row] for row in found.rows.tolist() if row not in found.problems]
    if flags.masks is not None:
        entries = [entry for entry in entries if _mask(flags, entry).is_file()]
    if len(entries) < MIN_IMAGES or flags.limit < MIN_IMAGES:
        masks = f" with a mask in {flags.masks}" if flags.masks is not None else ""
        raise DataError(
            f"{min(len(entries), flags.limit)} images{masks} are too few; give at least "
            f"{MIN_IMAGES}."
        )
    order = torch.randperm(len(entries), generator=torch.Generator().manual_seed(flags.seed))
    return [entries[number] for number in order[: flags.limit].tolist()]


def _mask(flags: Flags, entry: ImageEntry) -> Path:
    """The mask of an image."""
    return (flags.masks or Path()) / f"{Path(entry.name).stem}.png"


def _study(flags: Flags, named: NamedModel, entries: Sequence[ImageEntry]) -> "ModelStudy":
    """Measure one model."""
    from veca.analysis.study import StudyConfig, study  # noqa: PLC0415 - scipy is an extra
    from veca.analysis.study_report import ModelStudy  # noqa: PLC0415 - so is matplotlib

    config = StudyConfig(
        budgets=whole_numbers("--budgets", flags.budgets),
        size=flags.size,
        resolutions=whole_numbers("--resolutions", flags.resolutions),
        robust=flags.robust,
        drift=flags.drift,
        seed=flags.seed,
    )
    logger.info("%s: %d images", named.title, len(entries))
    with progress(len(entries), "images") as tracker:
        pictures = _pictures(flags, config, named, entries, tracker)
        return ModelStudy(named.name, study(named.model, pictures, config))


def _pictures(
    flags: Flags,
    config: "StudyConfig",
    named: NamedModel,
    entries: Sequence[ImageEntry],
    tracker: Tracker,
) -> Iterator["Picture"]:
    """Read images one by one; those that cannot be read are reported and left out."""
    from veca.analysis.study import read_picture  # noqa: PLC0415 - scipy is an extra

    folders = [Path(entry.name).parent.name for entry in entries]
    for entry, folder in zip(entries, folders, strict=True):
        mask = None if flags.masks is None else _mask(flags, entry)
        label = folder if len(set(folders)) > 1 else None
        try:
            with open_image(entry) as file:
                yield read_picture(file, config, named.model.config.patch_size, mask, label)
        except (ImageError, OSError) as error:
            logger.warning("%s", named_problem(entry.name, error))
        tracker.advance()


def _facts(
    flags: Flags, models: Sequence[NamedModel], entries: Sequence[ImageEntry]
) -> dict[str, Any]:
    """What the numbers depend on."""
    from veca.analysis.study import MEASURES  # noqa: PLC0415 - scipy is an extra

    settings = ("budgets", "size", "resolutions", "robust", "drift", "seed", "limit", "precision")
    return {
        "models": [
            {
                "name": one.name,
                "weights_sha256": one.digest,
                "trained": one.trained,
                "precision": one.model.precision,
            }
            for one in models
        ],
        "images": [Path(entry.name).name for entry in entries],
        "masks": None if flags.masks is None else str(flags.masks),
        "settings": {name: getattr(flags, name) for name in settings},
        "measures": dict(MEASURES),
    }


def _json(content: dict[str, Any]) -> bytes:
    """A line for each fact and for each row."""
    rows = [json.dumps(row) for row in content.pop("rows")]
    facts = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in content.items()]
    text = ",\n".join(facts) + ',\n"rows": [\n' + ",\n".join(rows) + "\n]"
    return ("{\n" + text + "\n}\n").encode()


def _print(rows: Sequence[Sequence[str]], models: Sequence[NamedModel]) -> None:
    """The headlines on the terminal."""
    table = Table(title_justify="left", box=None, pad_edge=False)
    table.add_column("mean over images, cores and layers as named")
    for model in models:
        name = model.name if model.trained else f"{model.name} (untrained)"
        table.add_column(Text(printable(name)), justify="right")
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120  # columns of the table
    console.print(table)
