"""Small pictures, shards and a small model that the tests of collections share."""

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import veca

SIDES = ((32, 32), (48, 32), (32, 64))
"""Width and height of the pictures, in turn."""


def encoded(number: int, sides: tuple[int, int] | None = None) -> bytes:
    """A PNG file of colored noise, another one for each number."""
    width, height = sides or SIDES[number % len(SIDES)]
    noise = np.random.default_rng(number).integers(0, 256, (height // 8, width // 8, 3), np.uint8)
    image = Image.fromarray(noise).resize((width, height), Image.Resampling.BILINEAR)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def write_pictures(folder: Path, count: int, first: int = 0) -> list[Path]:
    """Pictures of several shapes, named by their numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number:04}.png" for number in range(first, first + count)]
    for number, path in enumerate(paths, start=first):
        path.write_bytes(encoded(number))
    return paths


def write_shard(path: Path, members: Iterable[tuple[str, bytes]]) -> Path:
    """A tar shard."""
    with tarfile.open(path, "w") as shard:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            shard.addfile(member, io.BytesIO(content))
    return path


def small_model(seed: int = 0) -> veca.VECA:
    """A model that takes no time."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return veca.build(
            "tiny", layers=1, width=32, heads=2, budgets=(2, 4), ffn_shares=(0.5, 1.0)
        ).eval()


def saved_model(folder: Path, seed: int = 0) -> Path:
    """The folder of a small model."""
    veca.save(small_model(seed), folder)
    return folder
