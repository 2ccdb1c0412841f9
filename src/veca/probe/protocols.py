"""Evaluation protocols: named, frozen configurations, each with its source.

'paper' follows the VECA paper where it says enough; 'dinov2' and 'dinov3' follow the published
configurations of these models. Protocols ending in '-small' are ours, for datasets of a few hundred
images: fewer steps on cached crops. Compare their numbers only with each other.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from jaxtyping import Int64
from torch import Tensor

from veca.data.sets.dataset import LabeledDataset, Split
from veca.probe.feature_cache import ProbeContext
from veca.probe.models import FrozenModel, resolution_for
from veca.probe.rows import ProbeError, Setting, Task
from veca.runtime.device import seed_for

Selection = Literal["none", "held-out", "test", "test-best-step"]
"""How one of several heads is chosen.

'none': a single learning rate, the last step. 'held-out': the best learning rate at the last step,
on the dataset's own validation split or on held-out training images. 'test': the same on the test
split, as DINOv2 and DINOv3 do, which is slightly optimistic. 'test-best-step': the best learning
rate and step on the test split, as the VECA paper does, which is more optimistic.
"""

Metric = Literal["top1", "mean_per_class", "map"]

Inference = Literal["whole", "slide"]
"""Whether a test image is seen whole or through sliding windows (`sliding_window.py`)."""

CHOSEN_ON = {
    "test": "the reported part",
    "test-best-step": "the reported part",
    "held-out": "held-out pictures",
}
"""The images of a selection as reports name them; absent if nothing is chosen."""


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """Fields of all protocols."""

    features: ClassVar[tuple[str, ...]] = ("image", "image+patch-mean", "patch-mean")
    """Allowed values of `feature`: what a head sees of an image, or of each patch."""
    name: str
    resolution: int | None = None
    """Side of a crop, or short side of an image of a dense task, in pixels; None is the model's."""
    feature: str = "image"
    selection: Selection = "none"

    def sha256(self) -> str:
        """Hash of every number of the protocol, since a name may stand for others later."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    @property
    def chosen_on(self) -> str | None:
        """The images on which the protocol chooses a head; None if it chooses nothing."""
        return CHOSEN_ON.get(self.selection)


RESIZE_RATIO = 256 / 224
"""Short side of an image before its center crop, in sides of the crop."""

LEARNING_RATES = (
    *(digit * 10.0**power for power in (-5, -4, -3, -2) for digit in (1, 2, 5)),
    0.1,
)
"""Learning rates for a batch of 256 that DINOv2 and DINOv3 try."""

C_VALUES = tuple(10 ** (-6 + 11 * step / 44) for step in range(45))
"""Inverse penalties of logistic regression that DINOv2 and DINOv3 try."""

MAX_CROPS = 16
"""Random crops of an image whose features are computed; longer fits see them again."""


@dataclass(frozen=True, kw_only=True)
class KnnProtocol(Protocol):
    """Votes of the nearest neighbors; nothing is fitted."""

    ks: tuple[int, ...] = (10, 20, 100, 200)
    """Numbers of neighbors; those above the number of training images are skipped."""
    temperature: float = 0.07
    resize_ratio: float = RESIZE_RATIO


@dataclass(frozen=True, kw_only=True)
class LogisticProtocol(Protocol):
    """Logistic regression in which the penalty is chosen on held-out images."""

    c_values: tuple[float, ...] = C_VALUES
    """In ascending order: the weight of the data against the penalty, as in scikit-learn."""
    metric: Metric = "top1"
    """By which C is chosen."""
    selection: Selection = "held-out"
    held_out_share: float = 0.1
    """Share of the training images to choose C on, if the dataset has no validation split."""
    max_iterations: int = 1000
    """Products with the Hessian per value of C."""
    tolerance: float = 1e-12
    """A fit ends when the gradient is this fraction of the gradient at zero weights."""
    path_tolerance: float = 1e-6
    """The same for the fits that only serve to choose C."""
    resize_ratio: float = 1.0


@dataclass(frozen=True, kw_only=True)
class LinearProtocol(Protocol):
    """A linear layer trained by SGD with momentum and a cosine schedule to 0."""

    learning_rates: tuple[float, ...]
    """A head is trained with each."""
    scale_learning_rates: bool = False
    """Whether learning rates are for a batch of 256, and scale with the batch size."""
    batch: int = 128
    steps: int = 12_500
    momentum: float = 0.9
    num_crops: int = 0
    """Random crops of each training image to draw from; 0 uses the center crop only."""
    validate_every: int = 1250
    """Steps between validations for 'test-best-step'; the last step is always validated."""
    held_out_share: float = 0.1
    """Share of the training images to choose on for 'held-out'."""
    init_std: float = 0.01
    """Of the initial weights; biases start at 0."""
    resize_ratio: float = 1.125

    @property
    def validation_steps(self) -> tuple[int, ...]:
        """Numbers of steps after which heads are compared."""
        early = range(self.validate_every, self.steps, self.validate_every)
        return (*(early if self.selection == "test-best-step" else ()), self.steps)


KNN: dict[str, KnnProtocol] = {"dinov2": KnnProtocol(name="dinov2")}
"""DINOv2, `dinov2/eval/knn.py`, as in DINO and DINOv3: normalized features, votes weighted by
exp(cosine / 0.07), center crops of training and test images."""

LOGISTIC: dict[str, LogisticProtocol] = {"dinov2": LogisticProtocol(name="dinov2")}
"""DINOv2 and DINOv3, `log_regression.py`: 45 values of C, chosen on the validation split or a tenth
of the training images, then fitted on both; features are not normalized."""

PAPER = LinearProtocol(name="paper", learning_rates=(0.05,), selection="test-best-step")
"""The VECA paper, appendix A.5: SGD at 0.05, momentum 0.9, no decay, batch 128, 12,500 steps,
cosine; validated every 1,250 steps, best step reported. The paper does not specify the training
crops; we use the center crop."""

DINOV3 = LinearProtocol(
    name="dinov3",
    learning_rates=LEARNING_RATES,
    scale_learning_rates=True,
    selection="held-out",
    feature="image+patch-mean",
    num_crops=2,
    resize_ratio=RESIZE_RATIO,
)
"""DINOv3, `dinov3/eval/linear.py`: 13 learning rates, image feature and mean patch, random resized
crops with flips. The learning rate is chosen on a tenth of the training images, as in CAPI, not on
the test split; 'dinov3-test' does the latter, as the authors do."""

LINEAR: dict[str, LinearProtocol] = {
    "paper": PAPER,
    "dinov3": DINOV3,
    "dinov3-test": replace(DINOV3, name="dinov3-test", selection="test"),
    "paper-small": replace(
        PAPER, name="paper-small", steps=1_000, validate_every=1_000, selection="none"
    ),
    "dinov3-small": replace(DINOV3, name="dinov3-small", steps=1_000, num_crops=4),
}
"""The small ones take 1,000 steps; 'paper-small' reports the last one, 'dinov3-small' draws from
four random crops of each image."""


@dataclass(frozen=True, kw_only=True)
class SegmentationAugment:
    """Random crops of an image and its mask."""

    scales: tuple[float, float] = (0.5, 2.0)
    """Short side of the image before the crop, in sides of the crop."""
    cat_max_ratio: float = 0.75
    """Largest share of one class in a crop, of the pixels that count; else it is drawn again."""
    max_tries: int = 10
    """Crops drawn to satisfy `cat_max_ratio`; the last one is used in any case."""
    flip: float = 0.5
    """Probability of mirroring."""
    distortion: float = 0.5
    """Probability of each of the following color changes."""
    brightness: float = 32.0
    """Largest change of a level, of 255."""
    contrast: tuple[float, float] = (0.5, 1.5)
    saturation: tuple[float, float] = (0.5, 1.5)
    hue: float = 0.1
    """Largest rotation of the hue, in turns: MMSegmentation's 18 of OpenCV's 180 steps."""


@dataclass(frozen=True, kw_only=True)
class DepthAugment:
    """Random crops of an image and its depth."""

    crop: tuple[float, float] = (1.0, 1.0)
    """Height and width of a crop in short sides of the image, rounded to whole patches."""
    rotation: float = 2.5
    """Largest rotation in degrees."""
    rotate: float = 0.5
    """Probability of a rotation."""
    flip: float = 0.5
    """Probability of mirroring."""
    color: float = 0.5
    """Probability of the following color changes, which come together."""
    gamma: tuple[float, float] = (0.9, 1.1)
    brightness: tuple[float, float] = (0.75, 1.25)
    channels: tuple[float, float] = (0.9, 1.1)
    """Factor of each color channel."""


@dataclass(frozen=True, kw_only=True)
class DenseProtocol(Protocol):
    """A BatchNorm and a linear layer on patch features, fitted by AdamW."""

    features: ClassVar[tuple[str, ...]] = ("patches", "patches+image")
    resolution: int = 512
    feature: str = "patches"
    steps: int
    batch: int
    learning_rates: tuple[float, ...]
    """A head is trained with each."""
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float
    schedule: Literal["poly", "warmup-cosine", "one-cycle"]
    warmup: int = 0
    """Steps, of the last two schedules."""
    power: float = 1.0
    """Of 'poly'."""
    min_lr: float = 0.0
    """Learning rate at the end of 'poly'."""
    clip: float | None = None
    """Largest norm of the gradient of a head."""
    dropout: float = 0.0
    """Of whole channels of an image, before the BatchNorm."""
    inference: Inference = "whole"
    overlap: float = 1 - 341 / 512
    """Of sliding windows, as a share of a window."""
    num_crops: int | None = None
    """Crops of each training image whose features are cached and shared by all seeds; None draws
    new crops at every step."""
    pixel_stride: int = 1
    """The loss sees every n-th row and column of pixels, with a random offset per step."""
    held_out_share: float = 0.1
    """Share of the training images to choose on, if the dataset has no validation split."""
    num_validations: int = 1
    """At equal distances, the last one at the end."""

    @property
    def append_image_feature(self) -> bool:
        """Whether the image feature is appended to each patch feature."""
        return self.feature == "patches+image"

    @property
    def validation_steps(self) -> tuple[int, ...]:
        """Numbers of steps after which heads are compared."""
        count = self.num_validations
        return tuple(-(-self.steps * (part + 1) // count) for part in range(count))


@dataclass(frozen=True, kw_only=True)
class SegmentationProtocol(DenseProtocol):
    """Pixel-wise cross-entropy on bilinearly upsampled logits."""

    augment: SegmentationAugment = field(default_factory=SegmentationAugment)


@dataclass(frozen=True, kw_only=True)
class DepthProtocol(DenseProtocol):
    """Depth as a mean of fixed bins, weighted by the head's outputs (AdaBins without MLP)."""

    augment: DepthAugment = field(default_factory=DepthAugment)
    bins: int = 256
    upsample: int = 4
    """Bilinear upsampling of the outputs before they become meters."""
    variance_weight: float = 0.15
    """Weight of the squared mean of the log errors in SigLoss, beside their variance."""
    warmup_iters: int = 100
    """First steps, in which SigLoss uses the mean only."""


@dataclass(frozen=True, kw_only=True)
class DenseKnnProtocol(Protocol):
    """Patches labeled by the nearest labeled patches of training images; nothing is fitted."""

    features: ClassVar[tuple[str, ...]] = ("patches",)
    resolution: int = 512
    feature: str = "patches"
    k: int = 30
    temperature: float = 0.07
    max_patches: int = 32_768
    """Size of the memory bank; more patches are subsampled by the seed."""
    max_images: int = 2_000
    """Training images in the bank; more are subsampled by the seed."""


PAPER_DENSE: Mapping[str, Any] = {
    "name": "paper",
    "feature": "patches+image",
    "batch": 8,
    "learning_rates": (0.01,),
    "weight_decay": 1e-4,
    "schedule": "poly",
    "power": 0.9,
    "min_lr": 1e-4,
    "selection": "test-best-step",
    "num_validations": 10,
}
"""Values that segmentation and depth share in the paper."""

SEGMENTATION_PAPER = SegmentationProtocol(**PAPER_DENSE, steps=20_000, inference="slide")
"""The VECA paper, appendix A.5: image feature appended to each patch, AdamW 0.01, decay 1e-4,
polynomial schedule, batch 8, short side and crop 512, best validation mIoU of the run. `adapt` has
what differs for some models. For what the paper does not specify we use MMSegmentation's defaults:
power 0.9 to 1e-4, scales 0.5 to 2, flips and colors, BatchNorm, no dropout, loss over all pixels,
windows of 512 every 341 pixels; ten validations."""

SEGMENTATION_DINOV3 = SegmentationProtocol(
    name="dinov3",
    steps=40_000,
    batch=16,
    learning_rates=(1e-3,),
    weight_decay=1e-3,
    schedule="warmup-cosine",
    warmup=1_500,
    dropout=0.1,
    inference="slide",
    augment=SegmentationAugment(hue=0.5),
)
"""DINOv3, `config-ade20k-linear-training.yaml`: dropout, BatchNorm, linear layer on the last patch
features; windows of 512 every 341 pixels. Nothing is chosen on the validation split."""

SMALL: dict[str, Any] = {
    "resolution": 256,
    "steps": 2_000,
    "inference": "whole",
    "num_crops": 4,
    "pixel_stride": 8,
}
SMALL_DEPTH = SMALL | {"steps": 1_500, "pixel_stride": 4, "upsample": 1}

SEGMENTATION: dict[str, SegmentationProtocol] = {
    "paper": SEGMENTATION_PAPER,
    "dinov3": SEGMENTATION_DINOV3,
    "dinov3-chosen": replace(
        SEGMENTATION_DINOV3,
        name="dinov3-chosen",
        learning_rates=(3e-4, 1e-3, 3e-3),
        selection="held-out",
    ),
    "paper-small": replace(SEGMENTATION_PAPER, **SMALL, name="paper-small", num_validations=4),
    "dinov3-small": replace(
        SEGMENTATION_DINOV3,
        **SMALL,
        name="dinov3-small",
        warmup=100,
        augment=SegmentationAugment(),
    ),
}
"""The small ones: 2,000 steps at 256 pixels on four cached crops of each image, the loss on
one pixel of 64, test images seen whole; 'paper-small' chooses among four steps."""

PAPER_STEPS: Mapping[str, int] = {
    "voc2012": 20_000,
    "voc2012-aug": 20_000,
    "pascal-context-59": 40_000,
    "pascal-context-60": 40_000,
    "ade20k": 40_000,
    "coco-stuff": 80_000,
    "coco-object": 80_000,
    "cityscapes": 12_000,
}
"""Steps of the paper's segmentation heads by dataset; 20,000 for others."""

DEPTH_PAPER = DepthProtocol(**PAPER_DENSE, steps=38_400)
"""The VECA paper, appendix A.5: as for segmentation, 38,400 steps, best validation RMSE of the run.
The paper does not specify head, range, loss and crops; we use those of 'dinov3', with square crops
of 512 pixels."""

DEPTH_DINOV3 = DepthProtocol(
    name="dinov3",
    resolution=480,
    steps=38_400,
    batch=16,
    learning_rates=(3e-4,),
    betas=(0.9, 0.99),
    weight_decay=1e-4,
    schedule="one-cycle",
    warmup=12_800,
    clip=35.0,
    augment=DepthAugment(crop=(416 / 480, 416 / 480)),
)
"""DINOv3, `config-nyu.yaml`: BatchNorm and a linear layer to 256 bins, upsampled 4x as in DINOv2's
head; images at their own scale (short side 480 on NYU, 352 on KITTI), crops of 416 x 544 on NYU and
352 x 704 on KITTI (MDET); on other datasets squares of 416 / 480 short sides."""

DEPTH: dict[str, DepthProtocol] = {
    "paper": DEPTH_PAPER,
    "dinov3": DEPTH_DINOV3,
    "paper-small": replace(DEPTH_PAPER, **SMALL_DEPTH, name="paper-small", num_validations=4),
    "dinov3-small": replace(
        DEPTH_DINOV3, **SMALL_DEPTH, name="dinov3-small", learning_rates=(3e-3,), warmup=500
    ),
}
"""The small ones: 1,500 steps at 256 pixels on four cached crops of each image, no upsampling, the
loss on one pixel of 16; 'paper-small' chooses among four steps, 'dinov3-small' makes up for fewer
steps by ten times the learning rate."""

DENSE_KNN: dict[str, DenseKnnProtocol] = {
    "dense-knn": DenseKnnProtocol(name="dense-knn"),
    "dense-knn-small": DenseKnnProtocol(name="dense-knn-small", resolution=256),
}
"""Ours: thirty neighbors vote with the temperature of kNN on images, each with the shares of the
classes in its patch."""

PROTOCOLS: Mapping[Task, Mapping[str, Protocol]] = {
    "knn": KNN,
    "logistic": LOGISTIC,
    "linear": LINEAR,
    "segmentation": SEGMENTATION,
    "dense-knn": DENSE_KNN,
    "depth": DEPTH,
}


Protocol_co = TypeVar("Protocol_co", bound=Protocol, covariant=True)


@dataclass(frozen=True)
class ProbeInputs(Generic[Protocol_co]):
    """Inputs of a task: one model at some settings, one dataset, one protocol."""

    model: FrozenModel
    settings: Sequence[Setting]
    data: LabeledDataset
    protocol: Protocol_co
    seeds: Sequence[int]
    ctx: ProbeContext
    also: Sequence[LabeledDataset] = ()
    """More datasets to test the same heads on; for classification."""


def find_protocol(task: Task, name: str, data: LabeledDataset) -> Protocol:
    """A protocol by name, with the values that its source has for a dataset."""
    if name not in PROTOCOLS[task]:
        raise ProbeError(
            f"{task} has no protocol {name!r}; use one of {', '.join(PROTOCOLS[task])}."
        )
    found = PROTOCOLS[task][name]
    if isinstance(found, LogisticProtocol):
        several = data.test.labels is not None and data.test.labels.ndim > 1
        single: Metric = "mean_per_class" if data.per_class else "top1"
        return replace(found, metric="map" if several else single)
    if isinstance(found, LinearProtocol) and found.num_crops and not name.endswith("-small"):
        # New crops in every epoch, up to a limit.
        epochs = math.ceil(found.steps * found.batch / max(1, len(data.train or ())))
        return replace(found, num_crops=min(max(epochs, found.num_crops), MAX_CROPS))
    if isinstance(found, SegmentationProtocol) and name == "paper":
        return replace(found, steps=PAPER_STEPS.get(data.name, found.steps))
    if isinstance(found, DepthProtocol) and name == "dinov3" and data.depth is not None:
        if data.depth.kb_crop:
            augment = replace(found.augment, crop=(1.0, 704 / 352), brightness=(0.9, 1.1))
            return replace(found, resolution=352, augment=augment)
        if data.depth.nyu_crop:
            return replace(found, augment=replace(found.augment, crop=(416 / 480, 544 / 480)))
    return found


def adapt(
    protocol: Protocol,
    model: FrozenModel,
    resolution: int | None = None,
    feature: str | None = None,
) -> Protocol:
    """A protocol as used with a model; `resolution` and `feature` override it.

    With patches of 14 pixels the paper uses other resolutions; its heads on SigLIP 2 see patches
    only.
    """
    if feature is not None and feature not in protocol.features:
        raise ProbeError(
            f"feature {feature!r} is not available for this task; use one of "
            f"{', '.join(protocol.features)}."
        )
    side, seen = protocol.resolution or model.default_resolution, protocol.feature
    if isinstance(protocol, DenseProtocol) and protocol.name in {"paper", "paper-small"}:
        side = resolution_for(side, model.stride)
        seen = seen if model.append_image_feature else "patches"
    return replace(protocol, resolution=resolution or side, feature=feature or seen)


def training_split(data: LabeledDataset) -> Split:
    """The training split of a dataset, which must have one."""
    if data.train is None:
        hint = f"; give it with --also beside {data.uses_head_of}" if data.uses_head_of else ""
        raise ProbeError(f"{data.name} has no training split{hint}.")
    return data.train


def train_val_split(
    count: int, val_share: float, seed: int
) -> tuple[Int64[Tensor, " n"], Int64[Tensor, " m"]]:
    """Hold out a random share of `count` images, at least one; sorted indices of both parts."""
    if count < 2:
        raise ProbeError(
            f"{count} training images cannot be split to choose a head on; use at least 2, or a "
            "dataset with a validation split."
        )
    generator = torch.Generator().manual_seed(seed_for(seed, 0, "probe/held-out"))
    order = torch.randperm(count, generator=generator)
    held_out = min(max(1, round(val_share * count)), count - 1)
    return order[held_out:].sort().values, order[:held_out].sort().values
