"""Images and verdict of the recipe `quick`: crops of photographs, and synthetic patterns.

The photographs are those that installed packages contain, found without importing the packages or
a download. Training and validation images come from different photographs and patterns.
"""

import importlib.util
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator
from PIL import Image

from veca.data.images import DataError
from veca.distill.config import DistillConfig
from veca.recipes.patterns import draw_pattern
from veca.runtime.device import seed_for
from veca.runtime.distributed import is_main_process

SKIMAGE = (
    "astronaut.png", "brick.png", "chelsea.png", "coffee.png", "grass.png", "gravel.png",
    "hubble_deep_field.jpg", "ihc.png", "moon.png", "motorcycle_left.png", "page.png", "retina.jpg",
    "text.png",
)  # fmt: skip
TRAINING = (
    ("matplotlib", "mpl-data/sample_data/grace_hopper.jpg"),
    *(("skimage", f"data/{name}") for name in SKIMAGE),
    ("sklearn", "datasets/images/china.jpg"),
)
"""Photographs by package and path within it; drawings, charts and second views are left out."""

VALIDATION = (
    ("skimage", "data/camera.png"),
    ("skimage", "data/coins.png"),
    ("skimage", "data/rocket.jpg"),
    ("sklearn", "datasets/images/flower.jpg"),
)

SIDE = 160
"""Width and height of a crop in the file, in pixels."""

MIN_CROP = 112
"""Side of a crop in the photograph, in pixels; smaller ones would be blurred."""

TRAINING_CROPS, VALIDATION_CROPS = 2800, 128


def crop_photographs(config: DistillConfig, out: Path) -> DistillConfig:
    """Write the images of a run that names none; other ranks wait for rank 0 in `distill`."""
    folders = {"training": out / "images", "validation": out / "validation-images"}
    if is_main_process():
        write_crops(folders["training"], TRAINING, TRAINING_CROPS)
        write_crops(folders["validation"], VALIDATION, VALIDATION_CROPS)
    return replace(
        config,
        images=str(folders["training"]),
        validation=config.validation or str(folders["validation"]),
    )


def write_crops(folder: Path, photographs: Sequence[tuple[str, str]], count: int) -> None:
    """Fill a folder with crops and patterns unless it exists; it appears when complete."""
    if folder.exists():
        return
    paths = list(installed(photographs))
    if not paths:
        raise DataError(
            "the recipe quick found no sample photographs; pip install 'veca[samples]', or give "
            "--images DIR."
        )
    unfinished = folder.with_name(f"{folder.name}.tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    rng = np.random.default_rng(seed_for(0, 0, folder.name))
    for place, path in enumerate(paths):
        with Image.open(path) as file:
            photograph = file.convert("RGB")
        for number in range(place, count // 2, len(paths)):
            crop = photograph.resize(
                (SIDE, SIDE), Image.Resampling.BICUBIC, _random_box(rng, photograph.size)
            )
            crop.save(unfinished / f"{number:04d}_{path.stem}.jpg", quality=92)
    for number in range(count // 2, count):
        draw_pattern(rng, SIDE).save(unfinished / f"{number:04d}_pattern.jpg", quality=92)
    unfinished.rename(folder)


def installed(photographs: Sequence[tuple[str, str]]) -> Iterator[Path]:
    """Paths of the photographs whose packages are installed."""
    for package, path in photographs:
        found = importlib.util.find_spec(package)
        for folder in (found and found.submodule_search_locations) or ():
            if (Path(folder) / path).is_file():
                yield Path(folder) / path


def _random_box(rng: Generator, size: tuple[int, int]) -> tuple[float, float, float, float]:
    """A square at a random place, its side log-uniform from `MIN_CROP` to the whole photograph."""
    smallest = min(MIN_CROP, *size)
    side = smallest * (min(size) / smallest) ** rng.random()
    left, top = (rng.random() * (length - side) for length in size)
    return left, top, left + side, top + side


def compare_with_constant(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """How far the last validation losses are below the constant predictor's, a line each."""
    constant = next((row["loss"] for row in rows if row["kind"] == "baseline"), None)
    scored = [row for row in rows if row["kind"] == "validation" and row["loss"] is not None]
    if constant is None or not scored:
        return []
    last = max(row["step"] for row in scored)
    lines = []
    for row in (row for row in scored if row["step"] == last):
        cores = "full attention" if row["budget"] is None else f"{row['budget']} cores"
        ffn = "" if row["ffn"] == 1 else f" and FFN {row['ffn']:g}"
        below = 100 * (1 - row["loss"] / constant)
        lines.append(f"Validation loss {below:.1f} % below the constant predictor: {cores}{ffn}")
    return lines
