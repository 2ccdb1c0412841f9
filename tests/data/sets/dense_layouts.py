"""Writes small copies of sets with masks or depth, file by file as their makers lay them out."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from veca.data.sets.dataset import LabeledDataset, Split

WIDTH, HEIGHT = 16, 12

RED_AND_BLUE = [channel for number in range(256) for channel in (number, 0, 255 - number)]
"""A palette in which no index is a brightness."""


def write_picture(path: Path, shade: int = 128) -> None:
    """A picture of one shade, in the format that the name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (WIDTH, HEIGHT), (shade, shade, shade)).save(path)


def write_mask(path: Path, numbers: Iterable[int], *, palette: bool = False) -> NDArray[np.uint8]:
    """A mask whose pixels are these numbers in turn."""
    path.parent.mkdir(parents=True, exist_ok=True)
    mask = pixels(numbers).astype(np.uint8)
    image = Image.fromarray(mask)
    if palette:
        image = Image.frombytes("P", image.size, image.tobytes())
        image.putpalette(RED_AND_BLUE)
    image.save(path)
    return mask


def write_depth(path: Path, numbers: Iterable[int]) -> NDArray[np.uint16]:
    """A depth map of 16 bits whose pixels are these numbers in turn."""
    path.parent.mkdir(parents=True, exist_ok=True)
    depth = pixels(numbers).astype(np.uint16)
    Image.fromarray(depth).save(path)
    return depth


def write_sbd(path: Path, numbers: Iterable[int]) -> NDArray[np.uint8]:
    """A mask as the Semantic Boundaries Dataset has them."""
    from scipy.io import savemat  # noqa: PLC0415 - an extra

    path.parent.mkdir(parents=True, exist_ok=True)
    mask = pixels(numbers).astype(np.uint8)
    savemat(path, {"GTcls": {"Segmentation": mask, "CategoriesPresent": np.unique(mask)}})
    return mask


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """A list."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")


def pixels(numbers: Iterable[int]) -> NDArray[Any]:
    """Numbers in turn until all pixels have one."""
    return np.resize(np.array(list(numbers)), (HEIGHT, WIDTH))


def parts(found: LabeledDataset) -> tuple[Split, Split]:
    """The part to train on, which is there, and the part to test on."""
    assert found.train is not None
    return found.train, found.test
