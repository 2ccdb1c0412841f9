"""Depth: a linear head tells the meters of each pixel, judged at the pictures' own size."""

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from veca.data.images import DataError
from veca.data.sets.dataset import DepthRange, LabeledDataset, Split
from veca.probe.dense import DenseHead
from veca.probe.dense_losses import SigLoss
from veca.probe.dense_run import Chosen, DenseRun, DenseTask, Head, showing_of, training_split
from veca.probe.depth_scale import DepthScale, depth_scale
from veca.probe.feature_cache import RunContext, load_target
from veca.probe.features import CropTransform, Pair, PatchFeatures, Variant, prefix_errors
from veca.probe.metrics import PER_PICTURE, counted, depth_metrics, picture_errors
from veca.probe.models import FrozenFeatures, FrozenModel
from veca.probe.protocols import DepthAugment, DepthProtocol
from veca.probe.rows import Setting
from veca.probe.sliding_window import WindowGrid, merge_windows
from veca.probe.transforms import DenseCrop, crop_target, depth_crop, kitti_benchmark_crop


@dataclass(frozen=True, kw_only=True)
class DepthResult:
    """What a head is worth, and all that is needed to use it."""

    metrics: dict[str, float]
    """By the names of `depth_metrics.UNITS`, which has their units."""

    tensors: dict[str, Tensor]
    """Of the head, for a file."""

    facts: dict[str, Any]
    """Plain values that go with the tensors, to apply the head to a new picture."""

    counts: dict[str, int]
    """Pictures that it was fitted and judged on, 'train' and 'test', and those of the latter of
    which no pixel counts, 'without_depth'."""

    chosen: dict[str, Any]
    """The rate and the step that it stands for."""

    errors: dict[str, NDArray[np.float64]]
    """Errors of each test picture by the names of metrics, not a number where no pixel counts."""


def predict_depth_map(
    head: DenseHead,
    scale: DepthScale,
    views: Sequence[tuple[FrozenFeatures, bool]],
    layout: WindowGrid,
) -> Float[Tensor, "height width"]:
    """Meters of each pixel of a picture: the mean over its views, which may be mirrored."""
    maps = []
    for observed, flipped in views:
        found = merge_windows(scale.meters(head.maps(observed)), layout)[0]
        maps.append(found.flip(-1) if flipped else found)
    return torch.stack(maps).mean(0).clamp(scale.least, scale.most)


class DepthTask(DenseTask[NDArray[np.float64]]):
    """What depth adds to a dense task."""

    def __init__(self, data: LabeledDataset, protocol: DepthProtocol) -> None:
        self._depth = data.depth or DepthRange()
        self._protocol = protocol
        self.scale = depth_scale(protocol, self._depth)
        self.outputs = protocol.bins
        self.flips = (False, True) if protocol.flip_average else (False,)
        self.kb_crop = self._depth.kb_crop

    def recipe(self, side: int, multiple: int) -> CropTransform:
        """Parts of pictures at the scale of test pictures."""
        augment = self._protocol.augment
        facts = {
            "task": "depth",
            "short": side,
            "multiple": multiple,
            "kb_crop": self._depth.kb_crop,
            "nyu_crop": self._depth.nyu_crop,
            **asdict(augment),
        }
        return CropTransform(facts, partial(_view, (side, multiple), augment, self._depth))

    def loss(self, seed: int, ctx: RunContext) -> SigLoss:
        """Errors of the logarithm."""
        return SigLoss(self._protocol, self.scale, self._depth, seed, ctx.ranks)

    def judge(
        self, heads: Sequence[Head], split: Split, features: PatchFeatures, ctx: RunContext
    ) -> list[NDArray[np.float64]]:
        """The errors of every picture for every head."""
        errors = np.zeros((len(heads), len(split), len(PER_PICTURE) + 2))
        for index in range(ctx.ranks.rank, len(split), ctx.ranks.world_size):
            depth = self._target(split, index, ctx)
            with prefix_errors(split.targets[index]):
                mask = counted(depth, self._depth)
            for setting in dict.fromkeys(head.setting for head in heads):
                shown = [(features(index, Variant(setting, flip)), flip) for flip in self.flips]
                layout = shown[0][0][1]
                if layout.original != tuple(depth.shape):
                    raise DataError(
                        f"{split.targets[index]} has not the size of its picture; get both again."
                    )
                views = [(observed, flip) for (observed, _), flip in shown]
                for number, head in enumerate(heads):
                    if head.setting == setting:
                        found = predict_depth_map(head.head, self.scale, views, layout)
                        errors[number, index] = picture_errors(found, depth, mask)
        return list(ctx.ranks.all_reduce(torch.from_numpy(errors)).numpy())

    def goodness(self, judged: NDArray[np.float64]) -> float:
        """How small the root mean square error is, as a mean over pictures."""
        return -depth_metrics(judged)["rmse"]

    def _target(self, split: Split, index: int, ctx: RunContext) -> Float[Tensor, "height width"]:
        """The depth of a picture as it is used, on the workers' device."""
        depth = load_target(split, index).astype(np.float32, copy=False)
        height, width = depth.shape
        with prefix_errors(split.targets[index]):
            depth = crop_target(depth, kitti_benchmark_crop((height, width), self._depth))
        return torch.from_numpy(np.array(depth)).to(ctx.ranks.device)


def run_depth(  # noqa: PLR0913, PLR0917 - the door of a task
    model: FrozenModel,
    settings: Sequence[Setting],
    data: LabeledDataset,
    protocol: DepthProtocol,
    seeds: Sequence[int],
    ctx: RunContext,
) -> dict[tuple[Setting, int], DepthResult]:
    """Fit a head for every setting and seed, all settings on the same batches, and judge them."""
    training_split(data, "depth")
    task = DepthTask(data, protocol)
    run = DenseRun(task, model, data, protocol, ctx)
    facts = {
        "showing": asdict(showing_of(model, protocol, task.kb_crop)),
        "scale": task.scale.facts(),
        "flip_average": protocol.flip_average,
    }
    return {
        key: _result(chosen, data, facts) for key, chosen in run.results(settings, seeds).items()
    }


def _view(
    short_and_multiple: tuple[int, int],
    augment: DepthAugment,
    depth: DepthRange,
    pair: Pair,
    draw: random.Random,
) -> DenseCrop:
    """A training view."""
    short, multiple = short_and_multiple
    return depth_crop(
        pair.picture,
        pair.target.astype(np.float32, copy=False),
        draw,
        short=short,
        multiple=multiple,
        augment=augment,
        facts=depth,
    )


def _result(
    chosen: Chosen[NDArray[np.float64]], data: LabeledDataset, facts: dict[str, Any]
) -> DepthResult:
    """The outcome for one setting and seed."""
    errors = chosen.judged
    return DepthResult(
        metrics=depth_metrics(errors),
        tensors=chosen.head.tensors(),
        facts={**chosen.head.facts(), **facts},
        counts={
            "train": chosen.trained_on,
            "test": len(data.test),
            "without_depth": int((errors[:, -1] == 0).sum()),
        },
        chosen={"rate": chosen.candidate.rate, "step": chosen.candidate.step},
        errors={name: errors[:, number] for number, name in enumerate(PER_PICTURE)},
    )
