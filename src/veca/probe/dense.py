"""Linear heads on patch features: fit them, choose one, evaluate it.

`segmentation.py` and `depth.py` add the crops, the loss and the metrics of their task. A head is a
BatchNorm and a linear layer (a 1x1 convolution). Features are frozen, so batch statistics do not
depend on the head: features are normalized once for all heads of a setting. After training the
BatchNorm is folded into the linear layer. The image feature, if appended, is the same at every
patch: its part of the output is computed once per image.

Each rank computes its share of a batch; sums over ranks give the gradients of the whole batch.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters
from torch.optim import AdamW

from veca.data.sets.dataset import LabeledDataset, Split
from veca.probe.feature_cache import Variant
from veca.probe.features import (
    DenseBatch,
    DrawCrop,
    InferenceConfig,
    PatchFeatures,
    TrainingCrops,
    extract_patch_features,
)
from veca.probe.models import FrozenFeatures, FrozenModel
from veca.probe.protocols import DenseProtocol, ProbeInputs, train_val_split, training_split
from veca.probe.rows import ProbeResult, Setting
from veca.probe.sliding_window import Sides, WindowGrid, bilinear
from veca.runtime.device import seed_for
from veca.runtime.distributed import Ranks
from veca.runtime.logging import logger, progress

EPSILON = 1e-5
"""Of the BatchNorm."""

MOMENTUM = 0.1
"""Of its running mean and variance."""

INIT_STD = 0.01
"""Of the initial weights; biases start at 0."""

CYCLE_START, CYCLE_END = 1 / 1000, 1 / 25_000
"""Factors of the learning rate at the start and the end of 'one-cycle'."""

CYCLE_BETAS = (0.85, 0.95)
"""First beta of 'one-cycle' after its warmup: where it starts and ends."""

VAL_SEED = 0
"""The same images are held out for all seeds, as if they were a validation split."""

Predict = Callable[[slice], Float[Tensor, "b K rows columns"]]
"""The outputs of a head for a slice of the rank's images."""

Backward = Callable[[Predict], None]
"""Computes the loss of a head and adds its gradient."""

View = tuple[FrozenFeatures, WindowGrid]
"""The features of the windows of a test image, and where these lie."""

Scores = Mapping[str, Tensor]
"""Tables with one or more rows for each image, in the order of the images."""


class Candidate(NamedTuple):
    """One of the heads of a fit."""

    setting: Setting
    learning_rate: float = 0.0
    step: int = 0
    """Number of steps after which it was taken."""


class DenseScorer(ABC):
    """Compares the predictions on test images with their targets."""

    flips: tuple[bool, ...] = (False,)
    """Whether test images are seen as they are, mirrored, or both."""
    no_scores: Scores
    """Those of no image."""

    @abstractmethod
    def target(self, split: Split, index: int, sides: Sides, device: torch.device) -> Any:  # noqa: ANN401
        """The target of an image; its size must be `sides`."""

    @abstractmethod
    def predict(self, head: Callable[..., Tensor], views: Sequence[View]) -> Tensor:
        """What a head sees in the pixels of an image."""

    @abstractmethod
    def score(self, head: Callable[..., Tensor], views: Sequence[View], target: Any) -> Scores:  # noqa: ANN401
        """The scores of a head on one image."""

    @abstractmethod
    def metrics(self, scores: Scores) -> dict[str, float]:
        """By the names that reports use."""

    @abstractmethod
    def selection_metric(self, scores: Scores) -> float:
        """By which heads are chosen; higher is better."""

    @abstractmethod
    def per_image(self, scores: Scores) -> dict[str, Tensor]:
        """Results of single images, for paired tests."""

    def counts(self, scores: Scores) -> dict[str, int]:
        """Counts to report besides those of the splits."""
        del scores
        return {}


class DenseTask(DenseScorer):
    """A dense task: crops and loss in addition to scores."""

    data: LabeledDataset
    protocol: DenseProtocol
    outputs: int
    """Channels of the output K."""
    kb_crop: bool = False
    """Whether images are cropped as KITTI's benchmark does."""
    head_facts: Mapping[str, Any]
    """Plain values that `veca predict` needs besides the tensors of a head."""

    @abstractmethod
    def transform(self, short_side: int, multiple: int) -> tuple[DrawCrop, dict[str, Any]]:
        """Random training crops and all that they depend on, as plain JSON.

        Given the short side of test images and the size of patches.
        """

    @abstractmethod
    def loss(self, batch: DenseBatch, step: int, seed: int, ranks: Ranks) -> Backward:
        """The loss of a training step."""


def fit_and_evaluate(task: DenseTask, inputs: ProbeInputs[DenseProtocol]) -> Iterator[ProbeResult]:
    """Fit heads for every setting and seed on the same crops, choose one of each, evaluate it."""
    model, data, protocol, ctx = inputs.model, inputs.data, task.protocol, inputs.ctx
    settings = list(dict.fromkeys(inputs.settings))
    inference = inference_config(model, protocol, task.kb_crop)
    variants = [Variant(setting, flip) for setting in settings for flip in task.flips]
    train, (fit_on, val) = training_split(data), selection_split(data, protocol)
    draw, facts = task.transform(inference.short_side, model.stride)
    crops = TrainingCrops(model, settings, train, draw, facts, protocol.num_crops, ctx)

    def features_of(split: Split) -> PatchFeatures:
        return extract_patch_features(model, variants, split, inference, ctx)

    for seed in dict.fromkeys(inputs.seeds):
        batches = crops.batches(fit_on, protocol.batch, seed, protocol.steps)
        heads = fit_heads(task, inputs, batches, seed)
        if val is None:
            best = [one for one in heads if one.step == protocol.steps]
        else:
            scores = evaluate(task, heads, val, features_of(val), ctx.ranks)
            best = select_heads(task, scores)
        test = features_of(data.test)
        if val is not data.test:
            chosen = {one: heads[one] for one in best}
            scores = evaluate(task, chosen, data.test, test, ctx.ranks)
        for one in best:
            yield ProbeResult(
                data=data,
                setting=one.setting,
                seed=seed,
                metrics=task.metrics(scores[one]),
                counts={"train": len(fit_on), "test": len(data.test)} | task.counts(scores[one]),
                chosen={"rate": one.learning_rate, "step": one.step},
                tensors={key: value.cpu() for key, value in heads[one].state_dict().items()},
                facts={
                    **task.head_facts,
                    "patch_width": model.patch_width,
                    "inference": asdict(inference),
                },
                per_image=task.per_image(scores[one]),
                predict=partial(prediction, task, heads[one], one.setting, test),
            )


@torch.no_grad()
def prediction(
    scorer: DenseScorer,
    head: Callable[..., Tensor],
    setting: Setting,
    features: PatchFeatures,
    index: int,
) -> Tensor:
    """What a head sees in the pixels of one image."""
    views = [features(index, Variant(setting, flip)) for flip in scorer.flips]
    return scorer.predict(head, views).cpu()


def evaluate(
    scorer: DenseScorer,
    heads: Mapping[Candidate, Callable[..., Tensor]],
    split: Split,
    features: PatchFeatures,
    ranks: Ranks,
) -> dict[Candidate, Scores]:
    """The scores of all heads on a split; each rank predicts every n-th image."""
    own: dict[Candidate, dict[int, Scores]] = {one: {} for one in heads}
    for index in range(ranks.rank, len(split), ranks.world_size):
        views = {
            setting: [features(index, Variant(setting, flip)) for flip in scorer.flips]
            for setting in dict.fromkeys(one.setting for one in heads)
        }
        sides = next(iter(views.values()))[0][1].original
        target = scorer.target(split, index, sides, ranks.device)
        for one, head in heads.items():
            own[one][index] = scorer.score(head, views[one.setting], target)
    return {
        one: {
            name: _all_rows({i: scores[name] for i, scores in found.items()}, empty, split, ranks)
            for name, empty in scorer.no_scores.items()
        }
        for one, found in own.items()
    }


def _all_rows(own: Mapping[int, Tensor], empty: Tensor, split: Split, ranks: Ranks) -> Tensor:
    """The rows of all images, of which each rank has some; a sum, so that none counts twice."""
    lengths = torch.zeros(len(split), dtype=torch.int64)
    for index, rows in own.items():
        lengths[index] = len(rows)
    ends = ranks.all_reduce(lengths).cumsum(0).tolist()
    found = empty.new_zeros(ends[-1], *empty.shape[1:])
    for index, rows in own.items():
        found[ends[index] - len(rows) : ends[index]] = rows
    return ranks.all_reduce(found)


def select_heads(scorer: DenseScorer, scores: Mapping[Candidate, Scores]) -> list[Candidate]:
    """The best head of each setting; of equals the first."""
    best: dict[Setting, tuple[float, Candidate]] = {}
    for one, found in scores.items():
        value = scorer.selection_metric(found)
        if one.setting not in best or value > best[one.setting][0]:
            best[one.setting] = value, one
    return [one for _, one in best.values()]


def selection_split(
    data: LabeledDataset, protocol: DenseProtocol
) -> tuple[NDArray[np.int64], Split | None]:
    """Training images to fit on, and the split to choose a head on; None if nothing is chosen."""
    train = training_split(data)
    if protocol.selection == "held-out" and data.val is None:
        fit_on, held_out = train_val_split(len(train), protocol.held_out_share, VAL_SEED)
        return fit_on.numpy(), train.subset(held_out.numpy(), f"held out of {train.name}")
    val = {"none": None, "held-out": data.val}.get(protocol.selection, data.test)
    return np.arange(len(train)), val


def inference_config(
    model: FrozenModel, protocol: DenseProtocol, kb_crop: bool = False
) -> InferenceConfig:
    """How a protocol shows test images to a model."""
    side = model.round_down_to_patch(protocol.resolution)
    stride = max(1, round(side * (1 - protocol.overlap)))
    return InferenceConfig(
        short_side=side,
        mode=protocol.inference,
        window_stride=stride if protocol.inference == "slide" else 0,
        stride=model.stride,
        kb_crop=kb_crop,
    )


class DenseHead(nn.Module):
    """A linear layer on patch features and, if it is wide enough, the image feature."""

    def __init__(
        self, weight: Float[Tensor, "K D"], bias: Float[Tensor, " K"], patch_width: int
    ) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)
        self.patch_width = patch_width

    def forward(self, features: FrozenFeatures) -> Float[Tensor, "b K rows columns"]:
        """The outputs for each patch."""
        return _linear(features, self.weight, self.bias, self.patch_width)


class NormalizedHead(DenseHead):
    """A head in training, on normalized features: BatchNorm's affine parameters and weights."""

    def __init__(self, outputs: int, width: int, patch_width: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        weight = torch.randn(outputs, width, generator=generator).mul_(INIT_STD)
        super().__init__(weight, torch.zeros(outputs), patch_width)
        self.gain, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, features: FrozenFeatures) -> Float[Tensor, "b K rows columns"]:
        """W (gain * x + shift) + bias, with gain and shift folded into the weights."""
        weight, bias = self.weight * self.gain, self.bias + self.weight @ self.shift
        return _linear(features, weight, bias, self.patch_width)

    @torch.no_grad()
    def folded(self, norm: "SyncedBatchNorm") -> DenseHead:
        """The head on features that are not normalized."""
        scale = self.gain * (norm.variance + EPSILON).rsqrt()
        bias = self.bias + self.weight @ (self.shift - norm.mean * scale)
        return DenseHead(self.weight * scale, bias, self.patch_width)


class SyncedBatchNorm:
    """Normalizes features over the batches of all ranks; torch's own refuses tensors on the CPU."""

    def __init__(self, width: int, ranks: Ranks) -> None:
        self.mean = torch.zeros(width, device=ranks.device)
        self.variance = torch.ones(width, device=ranks.device)
        self._ranks = ranks

    def __call__(self, features: FrozenFeatures) -> FrozenFeatures:
        """Normalized features; the image feature counts once per patch."""
        image, patches = features
        cells = patches.shape[2] * patches.shape[3]
        sums = torch.cat((patches.sum((0, 2, 3)), image.sum(0) * cells)).double()
        count = sums.new_tensor([len(patches) * cells])
        sums, count = self._ranks.all_reduce(torch.cat((sums, count))).split((len(sums), 1))
        mean = (sums / count).float()
        width = patches.shape[1]
        patches = patches - mean[:width, None, None]
        image = image - mean[width:]
        squares = torch.cat((patches.square().sum((0, 2, 3)), image.square().sum(0) * cells))
        variance = self._ranks.all_reduce(squares) / count.float()
        scale = (variance + EPSILON).rsqrt()
        unbiased = variance * (count / (count - 1).clamp(min=1)).float()
        self.mean.lerp_(mean, MOMENTUM)
        self.variance.lerp_(unbiased, MOMENTUM)
        return FrozenFeatures(image * scale[width:], patches * scale[:width, None, None])


def fit_heads(
    task: DenseTask, inputs: ProbeInputs[DenseProtocol], batches: Iterable[DenseBatch], seed: int
) -> dict[Candidate, DenseHead]:
    """Train a head for every setting and learning rate; return them as of each validation step."""
    model, settings, ctx = inputs.model, inputs.settings, inputs.ctx
    protocol, ranks, device = task.protocol, ctx.ranks, ctx.ranks.device
    width = model.patch_width + (model.image_width if protocol.append_image_feature else 0)
    norms = {setting: SyncedBatchNorm(width, ranks) for setting in settings}
    first = seed_for(seed, 0, "dense head")
    heads = {
        (setting, rate): NormalizedHead(task.outputs, width, model.patch_width, first).to(device)
        for setting in settings
        for rate in protocol.learning_rates
    }
    optimizer = AdamW(
        [{"params": list(head.parameters()), "peak": rate} for (_, rate), head in heads.items()],
        weight_decay=protocol.weight_decay,
    )
    logger.info(
        "seed %d: fitting %d heads (%s, %s steps).",
        seed, len(heads), protocol.name, f"{protocol.steps:,}",
    )  # fmt: skip
    found: dict[Candidate, DenseHead] = {}
    shown = ctx.show_progress and ranks.is_main
    with progress(protocol.steps, "steps", shown=shown) as tracker:
        for step, batch in enumerate(batches):
            backward = task.loss(batch, step, seed, ranks)
            for setting, features in batch.features.items():
                normalized = norms[setting](_inputs(features, protocol, batch.part, seed, step))
                for rate in protocol.learning_rates:
                    backward(partial(_outputs, heads[setting, rate], normalized))
            parameters = [one for head in heads.values() for one in head.parameters()]
            gradients = [one.grad for one in parameters if one.grad is not None]
            # Over all ranks, in one message.
            vector_to_parameters(ranks.all_reduce(parameters_to_vector(gradients)), gradients)
            for group, head in zip(optimizer.param_groups, heads.values(), strict=True):
                if protocol.clip is not None:
                    clip_grad_norm_(head.parameters(), protocol.clip)
                group["lr"] = lr_at(protocol, group["peak"], step)
                group["betas"] = (beta1_at(protocol, step), protocol.betas[1])
            optimizer.step()
            optimizer.zero_grad()
            if step + 1 in protocol.validation_steps:
                for (setting, rate), head in heads.items():
                    found[Candidate(setting, rate, step + 1)] = head.folded(norms[setting])
            tracker.advance()
    return found


def lr_at(protocol: DenseProtocol, peak: float, step: int) -> float:
    """The learning rate of a step, counted from 0.

    'poly': (1 - t / T) ** power, from the peak to `min_lr`.
    'warmup-cosine': a linear warmup, times what is left linearly, then half a cosine over the whole
        length, so that it continues slightly below the peak (DINOv3).
    'one-cycle': half a cosine over the whole length, times a linear warmup; >= 1 / 1000 of the
        peak in the warmup and 1 / 25,000 after it (DINOv3's depth).
    """
    done = step / protocol.steps
    rise = min(1.0, step / protocol.warmup) if protocol.warmup else 1.0
    if protocol.schedule == "poly":
        end = min(protocol.min_lr, peak)
        return end + (peak - end) * (1 - done) ** protocol.power
    if protocol.schedule == "warmup-cosine":
        if step < protocol.warmup:
            return peak * rise * (1 - done)
        return peak * _half_cosine((step + 1) / protocol.steps)
    if step < protocol.warmup:
        return peak * (CYCLE_START + _half_cosine(done) * rise)
    return peak * (CYCLE_END + (1 - CYCLE_END) * _half_cosine(done))


def beta1_at(protocol: DenseProtocol, step: int) -> float:
    """AdamW's first beta: constant, except for 'one-cycle': 0 in its warmup, then rising."""
    if protocol.schedule != "one-cycle":
        return protocol.betas[0]
    if step < protocol.warmup:
        return 0.0
    done = (step - protocol.warmup) / max(1, protocol.steps - protocol.warmup)
    low, high = CYCLE_BETAS
    return high + (low - high) * _half_cosine(done)


class SampledPixels:
    """The pixels of a step's loss: every n-th row and column, with a random offset.

    Outputs of patches are upsampled bilinearly to these pixels only, by a matrix along each side.
    """

    def __init__(self, batch: DenseBatch, stride: int, seed: int, step: int) -> None:
        number = seed_for(seed, step, "dense loss") if stride > 1 else 0
        self._rows = slice(number % stride, None, stride)
        self._columns = slice(number // stride % stride, None, stride)
        self._sides = batch.targets.shape[1:]
        self.targets: Shaped[Tensor, "b h w"] = batch.targets[:, self._rows, self._columns]

    def upsample(self, maps: Float[Tensor, "b K rows columns"]) -> Float[Tensor, "b K h w"]:
        """Outputs at the sampled pixels."""
        height, width = self._sides
        down = _bilinear(maps.shape[2], height)[self._rows].to(maps)
        across = _bilinear(maps.shape[3], width)[self._columns].to(maps)
        return down @ maps @ across.T


_bilinear = lru_cache(maxsize=64)(bilinear)


def _linear(
    features: FrozenFeatures, weight: Tensor, bias: Tensor, patch_width: int
) -> Float[Tensor, "b K rows columns"]:
    """A 1x1 convolution of the patches, plus the contribution of the image feature."""
    maps = F.conv2d(features.patches, weight[:, :patch_width, None, None])
    image_weight = weight[:, patch_width:]
    offset = bias + features.image[:, : image_weight.shape[1]] @ image_weight.T
    return maps + offset.expand(len(maps), -1)[..., None, None]


def _inputs(
    features: FrozenFeatures, protocol: DenseProtocol, part: slice, seed: int, step: int
) -> FrozenFeatures:
    """The inputs of heads, with dropped channels, which are the same for all settings."""
    patches = features.patches.float()
    image = features.image.float()
    if not protocol.append_image_feature:
        image = image[:, :0]
    if not protocol.dropout:
        return FrozenFeatures(image, patches)
    width = patches.shape[1]
    number = seed_for(seed, step, "dense dropout")
    mask = drop_channels(protocol.batch, width + image.shape[1], protocol.dropout, number)
    mask = mask[part].to(patches.device)
    return FrozenFeatures(image * mask[:, width:], patches * mask[:, :width, None, None])


def drop_channels(
    images: int, width: int, share: float, seed: int
) -> Float[Tensor, "{images} {width}"]:
    """Factors of Dropout2d for the channels of each image."""
    generator = torch.Generator().manual_seed(seed)
    remains = torch.rand(images, width, generator=generator) >= share
    return remains.float() / (1 - share)


def _outputs(head: nn.Module, features: FrozenFeatures, images: slice) -> Tensor:
    found: Tensor = head(FrozenFeatures(features.image[images], features.patches[images]))
    return found


def _half_cosine(done: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * done))
