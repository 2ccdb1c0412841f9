"""Small pictures whose colors tell classes and depth, and a model that sees colors."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from veca.data.listing import TableBuilder
from veca.data.sets.dataset import IGNORE_INDEX, DepthRange, LabeledDataset, Split
from veca.probe.feature_cache import RunContext
from veca.probe.models import FrozenFeatures, FrozenModel
from veca.probe.protocols import (
    DepthAugment,
    DepthProtocol,
    SegmentationAugment,
    SegmentationProtocol,
)
from veca.probe.rows import ProbeResult, Setting
from veca.runtime.distributed import Ranks

CPU = torch.device("cpu")
ALONE = Ranks(device=CPU)
CLASSES = ("field", "barn", "pond", "never")
COLORS = ((60, 140, 60), (180, 40, 40), (40, 60, 190))
SIZES = ((40, 56), (48, 48), (64, 40))
FEW, ALL = Setting(1), Setting(8)

AUGMENT = SegmentationAugment(brightness=8.0, contrast=(0.9, 1.1), saturation=(0.9, 1.1), hue=0.02)
SMALL = SegmentationProtocol(
    name="small",
    resolution=32,
    steps=60,
    batch=4,
    learning_rates=(0.05,),
    weight_decay=1e-4,
    schedule="poly",
    num_crops=2,
    augment=AUGMENT,
)
SMALL_DEPTH = DepthProtocol(
    name="small",
    resolution=32,
    steps=60,
    batch=4,
    learning_rates=(0.05,),
    weight_decay=1e-4,
    schedule="poly",
    num_crops=2,
    bins=16,
    upsample=2,
    warmup_iters=5,
    augment=DepthAugment(crop=(0.75, 0.75), color=0.0),
)


class ColorModel(FrozenModel):
    """Mean colors of cells and their squares; a small budget sees only some of these."""

    def __init__(self, digest: str = "colors", stride: int = 8) -> None:
        super().__init__(
            device=CPU,
            name="colors",
            kind="veca",
            digest=digest,
            trained=True,
            stride=stride,
            image_width=3,
            patch_width=6,
            elastic=True,
            default_resolution=32,
        )
        self.asked: Counter[Setting] = Counter()
        """Images that it was asked about, at each setting."""

    def forward(
        self, images: UInt8[Tensor, "B 3 H W"], grid: tuple[int, int], setting: Setting
    ) -> FrozenFeatures:
        self.asked[setting] += len(images)
        cells = F.adaptive_avg_pool2d(images.float() / 255, grid)
        patches = torch.cat((cells, cells.square()), 1)
        patches[:, setting.budget or 6 :] = 0
        return FrozenFeatures(cells.mean((2, 3)), patches)


def context_in(folder: Path, ranks: Ranks = ALONE, **others: Any) -> RunContext:
    """A silent run context without worker processes."""
    usual: dict[str, Any] = {"log": lambda _: None, "num_workers": 0, "show_progress": False}
    return RunContext(cache=folder, ranks=ranks, **usual | others)


def read_array(path: str) -> NDArray[Any]:
    """A target of these sets."""
    found: NDArray[Any] = np.load(path)
    return found


def scene(number: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """A picture with a barn and a pond, and its classes; some pixels do not count."""
    draw = np.random.default_rng(number)
    height, width = SIZES[number % len(SIZES)]
    mask = np.zeros((height, width), np.uint8)
    mask[height // 2 :, : int(draw.integers(8, width // 2))] = 1
    mask[: int(draw.integers(8, height // 2)), width // 2 :] = 2
    picture = np.array(COLORS)[mask] + draw.integers(-12, 13, (height, width, 3))
    mask[0, :5] = IGNORE_INDEX
    return picture.clip(0, 255).astype(np.uint8), mask


def ramp(number: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """A picture that is darker where it is farther away, and its depth; some of it is unknown."""
    draw = np.random.default_rng(100 + number)
    across, down = np.meshgrid(np.arange(48), np.arange(48))
    far = (across * draw.random() + down * draw.random()) / 96
    depth = (1 + 6 * far).astype(np.float32)
    picture = np.repeat((250 * (1 - far))[:, :, None], 3, 2).astype(np.uint8)
    depth[:3, :3] = 0
    return picture, depth


def split_of(folder: Path, name: str, kind: str, numbers: Sequence[int]) -> Split:
    """A part of a set, which is written first unless it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    table, keys, targets = TableBuilder(), [], []
    for number in numbers:
        path, target = folder / f"{kind}-{number}.png", folder / f"{kind}-{number}.npy"
        if not target.exists():
            pixels, told = scene(number) if kind == "masks" else ramp(number)
            Image.fromarray(pixels).save(path)
            np.save(target, told)
        table.add_file(str(path), path.stat().st_size)
        keys.append(path.name)
        targets.append(str(target))
    return Split(
        name=name,
        images=table.table(),
        keys=tuple(keys),
        targets=tuple(targets),
        read_target=read_array,
    )


def farm(folder: Path, train: int = 9, test: int = 5) -> LabeledDataset:
    """A set with masks."""
    return LabeledDataset(
        name="farm",
        kind="masks",
        classes=CLASSES,
        train=split_of(folder, "train", "masks", range(train)),
        test=split_of(folder, "val", "masks", range(50, 50 + test)),
    )


def ramps(folder: Path, train: int = 8, test: int = 4) -> LabeledDataset:
    """A set with depth."""
    return LabeledDataset(
        name="ramps",
        kind="depth",
        train=split_of(folder, "train", "depth", range(train)),
        test=split_of(folder, "val", "depth", range(50, 50 + test)),
        depth=DepthRange(),
    )


def by_setting(found: Iterable[ProbeResult]) -> dict[tuple[Setting, int], ProbeResult]:
    """Results by setting and seed."""
    return {(one.setting, one.seed): one for one in found}
