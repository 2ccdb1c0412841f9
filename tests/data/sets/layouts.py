"""Small copies of datasets, file by file as published, and how they are read."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from veca.data.sets.dataset import DatasetError, LabeledDataset, Split
from veca.data.sets.registry import read_set


def write(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """Files by their names below a folder, which is returned."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def touch(folder: Path, *names: str) -> Path:
    """Files that only have to be there, each of another size."""
    return write(folder, {name: b"x" * (place + 1) for place, name in enumerate(names)})


def read(name: str, folder: Path) -> LabeledDataset:
    """Read a small copy of a published dataset."""
    return read_set(f"{name}={folder}", allow_partial=True)


def complaint(name: str, folder: Path) -> str:
    """The error about a copy that differs from the published dataset."""
    with pytest.raises(DatasetError) as error:
        read_set(f"{name}={folder}")
    return str(error.value)


def labels(split: Split | None) -> dict[str, int]:
    """Label by name; every image must be where the split says it is."""
    assert split is not None
    for row, name in enumerate(split.keys):
        source = split.image(row)
        assert Path(source.name).as_posix().endswith(f"/{name}")
        if source.shard is None:
            assert Path(source.name).stat().st_size == source.num_bytes
    return dict(zip(split.keys, np.asarray(split.labels).tolist(), strict=True))


WIDTH, HEIGHT = 16, 12

RED_AND_BLUE = [channel for number in range(256) for channel in (number, 0, 255 - number)]
"""A palette in which no index is a brightness."""


def write_picture(path: Path, shade: int = 128) -> None:
    """An image of one shade, in the format that the name says."""
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
