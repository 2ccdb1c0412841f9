"""The pictures of the recipe `quick`: crops of photographs at hand, and generated pictures.

They go into one tar shard. A description beside it is written last and says what went in, so that
the next run takes the shard as it is, unless a setting, a photograph, the drawing or a byte of it
has changed. Equal settings give equal bytes on one machine.
"""

import hashlib
import io
import json
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.random import Generator
from PIL import Image

from veca.data.generated import LABELS, generated_picture
from veca.data.images import Box, DataError, decode
from veca.data.listing import BLOCK
from veca.recipes.photographs import shipped_photographs
from veca.runtime.device import seed_for
from veca.runtime.files import TEMPORARY_SUFFIX, LockedError, lock_folder, make_folder, write_atomic

SIDE = 160
"""Width and height of a picture in pixels."""

SMALLEST_CROP = 112
"""Pixels of a photograph along the side of a crop; smaller ones would be blurred."""

MOST_CROPS = 250
"""Of one photograph: more would repeat themselves."""

QUALITY = 92
"""Of JPEG files."""

SHARD_NAME = "pictures.tar"
DESCRIPTION_NAME = "pictures.json"

Part = Literal["training", "validation"]


def quick_pictures(folder: Path, count: int, seed: int = 0, *, part: Part = "training") -> Path:
    """Fill a folder with so many pictures, half of them crops of photographs, and return it.

    A folder that holds these very pictures is taken as it is. The parts share no photograph and
    no generated picture. Processes that ask at the same time wait for the first one.

    Raises:
        DataError: No picture is asked for, or the folder holds other things.
    """
    if count < 1:
        raise DataError(f"count={count} asks for no picture; use 1 or more.")
    photographs = shipped_photographs(held_out=part == "validation")
    settings = _settings(photographs, count, seed, part)
    while not _is_complete(folder, settings):
        make_folder(folder)
        try:
            with lock_folder(folder):
                if not _is_complete(folder, settings):
                    _make(folder, photographs, settings)
        except LockedError:
            time.sleep(0.1)
    return folder


def _settings(photographs: list[Path], count: int, seed: int, part: Part) -> dict[str, Any]:
    """All that the bytes of the shard depend on, as JSON holds it."""
    drawn = seed_for(seed, 0, f"{part} pictures of quick")
    sample = hashlib.sha256()
    for number in range(len(LABELS)):
        sample.update(generated_picture(drawn, number, 32)[0].tobytes())
    return {
        "part": part,
        "count": count,
        "crops": min(count // 2, MOST_CROPS * len(photographs)),
        "seed": drawn,
        "side": SIDE,
        "smallest_crop": SMALLEST_CROP,
        "quality": QUALITY,
        "photographs": {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in photographs
        },
        "drawing": sample.hexdigest(),
    }


def _is_complete(folder: Path, settings: dict[str, Any]) -> bool:
    """Whether the folder holds pictures of these settings, and every byte of them."""
    try:
        description = json.loads((folder / DESCRIPTION_NAME).read_bytes())
        if not isinstance(description, dict) or description.get("settings") != settings:
            return False
        with (folder / SHARD_NAME).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == description.get("sha256")
    except (OSError, ValueError):
        return False


def _make(folder: Path, photographs: list[Path], settings: dict[str, Any]) -> None:
    """Write the shard, then its description."""
    _clear(folder)
    digest = hashlib.sha256()

    def pieces() -> Iterator[bytes]:
        for piece in _shard(photographs, settings):
            digest.update(piece)
            yield piece

    write_atomic(folder / SHARD_NAME, pieces())
    description = {"settings": settings, "sha256": digest.hexdigest()}
    text = json.dumps(description, indent=2) + "\n"
    write_atomic(folder / DESCRIPTION_NAME, [text.encode()])


def _clear(folder: Path) -> None:
    """Remove what an earlier call left behind; refuse a folder that holds anything else."""
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    others = [name for name in names if name not in {SHARD_NAME, DESCRIPTION_NAME}]
    if others:
        raise DataError(
            f"{folder} holds other things too, such as {others[0]}, which would be trained on; "
            "name an empty folder, or one that does not exist."
        )
    (folder / DESCRIPTION_NAME).unlink(missing_ok=True)
    for path in folder.glob(f".pictures.*{TEMPORARY_SUFFIX}"):
        path.unlink()


def _shard(photographs: list[Path], settings: dict[str, Any]) -> Iterator[bytes]:
    """A tar file piece by piece, without a date or an owner."""
    for name, picture in _pictures(photographs, settings):
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=settings["quality"])
        header = tarfile.TarInfo(name)
        header.size = file.tell()
        yield header.tobuf(tarfile.USTAR_FORMAT)
        yield file.getvalue() + bytes(-header.size % BLOCK)
    yield bytes(2 * BLOCK)  # which end a tar file


def _pictures(
    photographs: list[Path], settings: dict[str, Any]
) -> Iterator[tuple[str, Image.Image]]:
    """Names and pictures: equally many crops of each photograph, then the generated ones."""
    seed, crops, side = settings["seed"], settings["crops"], settings["side"]
    for place, path in enumerate(photographs):
        photograph = decode(path)
        for number in range(place, crops, len(photographs)):
            box = _crop(np.random.default_rng((seed, number)), photograph.sides)
            # One band, since every photograph of the table has 8 bits.
            yield f"{number:06d}_{path.stem}.jpg", photograph.resampled((side, side), box).bands[0]
    for number in range(crops, settings["count"]):
        yield f"{number:06d}_generated.jpg", generated_picture(seed, number - crops, side)[0]


def _crop(draw: Generator, sides: tuple[int, int]) -> Box:
    """A square at a random place; small ones are as likely as ones twice as large."""
    height, width = sides
    largest = min(sides)
    smallest = min(SMALLEST_CROP, largest)
    side = smallest * (largest / smallest) ** float(draw.random())
    left, top = float(draw.random()) * (width - side), float(draw.random()) * (height - side)
    return left, top, min(left + side, float(width)), min(top + side, float(height))
