"""Small pictures and a small model that counts what it is asked, for the tests of features."""

import os
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.nn import functional as F

from tests.data.pictures import write_pictures
from veca.data.listing import TableBuilder
from veca.data.sets.dataset import Split
from veca.probe import features
from veca.probe.feature_cache import RunContext
from veca.probe.features import CropConfig, InferenceConfig, Variant
from veca.probe.models import FrozenFeatures, FrozenModel
from veca.probe.rows import Setting
from veca.runtime.distributed import Ranks

CPU = torch.device("cpu")
ALONE = Ranks(device=CPU)
SIDE = 16
CENTER = CropConfig(resolution=SIDE)
SETTINGS = (Setting(2), Setting(4, 0.5), Setting(8))
WHOLE = InferenceConfig(short_side=SIDE, stride=4)
VARIANTS = (Variant(SETTINGS[0]),)


class CellModel(FrozenModel):
    """Features of the colors of each cell, through random weights, another mix for each budget."""

    def __init__(self, *, seed: int = 0, digest: str | None = "cells", die_at: int = 0) -> None:
        super().__init__(
            device=CPU,
            name="cells",
            kind="veca",
            digest=digest,
            trained=False,
            stride=4,
            image_width=5,
            patch_width=6,
            elastic=True,
            default_resolution=SIDE,
        )
        draw = torch.Generator().manual_seed(seed)
        self.weight = torch.randn(8 + 1, 3, 6, generator=draw)
        self.asked: Counter[Setting] = Counter()
        """Views that it was asked about, at each setting."""
        self.lots: set[int] = set()
        """How many it was asked about at once."""
        self.die_at = die_at
        """Calls after which the process ends as by a power cut; 0 is never."""
        self.calls = 0
        self.counting = threading.Lock()

    def forward(
        self, images: UInt8[Tensor, "B 3 H W"], grid: tuple[int, int], setting: Setting
    ) -> FrozenFeatures:
        """Colors of cells, mixed and bent."""
        with self.counting:
            self.asked[setting] += len(images)
            self.lots.add(len(images))
            self.calls += 1
            if self.calls == self.die_at:
                os.kill(os.getpid(), signal.SIGKILL)
        cells = F.adaptive_avg_pool2d(images.float() / 255, grid)
        mixed = torch.einsum("bchw,cd->bdhw", cells, self.weight[setting.budget or 0])
        patches = torch.tanh(mixed * (setting.ffn or 1.0))
        return FrozenFeatures(patches.flatten(2).amax(2)[:, :5], patches)


def split_of(folder: Path, count: int = 11) -> Split:
    """A split of some pictures, which are written first."""
    table = TableBuilder()
    paths = write_pictures(folder, count)
    for path in paths:
        table.add_file(str(path), path.stat().st_size)
    return Split(
        name="train",
        images=table.table(),
        keys=tuple(path.name for path in paths),
        labels=np.arange(count) % 3,
    )


def context_in(folder: Path, ranks: Ranks = ALONE, **changes: Any) -> RunContext:
    """A silent run context without worker processes."""
    usual: dict[str, Any] = {"num_workers": 0, "batch": 4, "log": lambda _: None}
    return RunContext(cache=folder, ranks=ranks, show_progress=False, **usual | changes)


def use_small_chunks() -> None:
    """Chunks of 4 images in this process, so that few images make several."""
    features.IMAGE_CHUNK = features.MAP_CHUNK = 4


def files_in(folder: Path) -> dict[str, bytes]:
    """The content of all files below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
