"""Evaluation protocols by name, with their sources.

Protocols of classification probes: named, frozen, each with its source.

Those of dense tasks stand in `dense_protocols.py`.

What a linear probe is: named, frozen numbers.

What a protocol of a dense probe says: views, head, fit, and how test pictures are shown.

The protocols of dense probes by name, each with its source.

'paper' is the VECA paper's, as far as it tells; 'dinov3' is DINOv3's published configuration;
'dinov3-chosen' is the same with the rate chosen on pictures put aside from training. Those that end
in '-small' are ours for sets of some hundred pictures: a few thousand steps on kept views, pictures
shown whole. Their numbers compare models measured by the same protocol, and nothing else.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from veca.data.sets.dataset import LabeledDataset
from veca.probe.logistic import LogisticConfig
from veca.probe.models import FrozenModel, resolution_for
from veca.runtime import VecaError

Feature = Literal["image", "image+patch-mean", "patch-mean"]
"""What a head sees: the image feature, the mean of the patches, or both side by side."""

LinearSelection = Literal["test-best-step", "test", "held-out", "none"]
"""How one head is chosen among rates and steps.

'test-best-step': the best rate and step on the reported set, as the paper: a mild optimism. 'test':
the best rate on the reported set, at the last step, as DINOv2 and DINOv3: the same, milder.
'held-out': the best rate on training pictures put aside, at the last step, as CAPI: none.
'none': one rate, the last step.
"""


class ProtocolError(VecaError, ValueError):
    """A protocol that cannot be followed: what was got, what is allowed, what to do."""


@dataclass(frozen=True, kw_only=True)
class LinearProtocol:
    """A linear layer trained by SGD with momentum, its rate falling along half a cosine to 0."""

    name: str

    rates: tuple[float, ...]
    """Learning rates; a head is trained with each."""

    scale_rates: bool = False
    """Whether the rates are for a batch of 256, and multiplied by batch / 256."""

    batch: int = 128
    """Pictures a step."""

    steps: int = 12_500

    momentum: float = 0.9

    weight_decay: float = 0.0
    """Of the weights; biases do not decay."""

    schedule: Literal["cosine"] = "cosine"

    feature: Feature = "image"

    views: int = 0
    """Random views of each training picture to draw from; 0 means the view of the middle alone."""

    validate_every: int = 1250
    """Steps between two judgments where the best step is kept; the last step is judged always."""

    selection: LinearSelection = "none"

    held_out_share: float = 0.1
    """Share of the training pictures that are put aside for the selection 'held-out'."""

    init_std: float = 0.01
    """Spread of the weights at the start, about 0; biases start at 0."""

    resolution: int | None = None
    """Pixels of the side of a view; None leaves it to the model."""

    margin: float = 1.125
    """Short side of a test picture before the middle is cut out, in sides of the view."""

    def __post_init__(self) -> None:
        """Refuse what cannot be followed."""
        if not self.rates or not all(0 < rate < math.inf for rate in self.rates):
            raise ProtocolError(f"rates={self.rates} are no learning rates; use some above 0.")
        if len(set(self.rates)) != len(self.rates):
            raise ProtocolError(f"rates={self.rates} hold one twice; leave it out.")
        if self.selection == "none" and len(self.rates) > 1:
            raise ProtocolError(
                f"with the selection 'none' {len(self.rates)} rates leave open which head is "
                "meant; use one rate, or choose by 'held-out'."
            )
        if min(self.batch, self.steps, self.validate_every) < 1 or self.views < 0:
            raise ProtocolError(
                f"batch={self.batch}, steps={self.steps}, validate_every={self.validate_every} and "
                f"views={self.views} cannot be; use 1 or more, and 0 or more views."
            )
        if not 0 <= self.momentum < 1 or self.weight_decay < 0 or not 0 < self.held_out_share < 1:
            raise ProtocolError(
                f"momentum={self.momentum}, weight_decay={self.weight_decay} and "
                f"held_out_share={self.held_out_share} cannot be; use 0 <= momentum < 1, a decay "
                "from 0 on, and 0 < share < 1."
            )

    @property
    def judged_steps(self) -> tuple[int, ...]:
        """Steps after which heads are judged, the last one among them; none where none chooses."""
        if self.selection == "none":
            return ()
        if self.selection != "test-best-step":
            return (self.steps,)
        return (*range(self.validate_every, self.steps, self.validate_every), self.steps)

    def rate_at(self, rate: float, step: int) -> float:
        """The rate of a step, counted from 0, for one of the `rates`."""
        base = rate * self.batch / 256 if self.scale_rates else rate
        return base * (1 + math.cos(math.pi * step / self.steps)) / 2


DINO_MARGIN = 256 / 224
"""Short side of a picture, in sides of the square that is cut out: 256 for 224."""

DINO_RATES = (
    *(digit * 10.0**power for power in (-5, -4, -3, -2) for digit in (1, 2, 5)),
    0.1,
)
"""Learning rates for a batch of 256 that DINOv2 and DINOv3 try."""

MOST_VIEWS = 16
"""Random views of a picture that are computed; a longer fit sees them again."""

PAPER = LinearProtocol(
    name="paper",
    rates=(0.05,),
    batch=128,
    steps=12_500,
    validate_every=1250,
    selection="test-best-step",
    feature="image",
    margin=1.125,
)
"""The VECA paper, appendix A.5: SGD at 0.05, momentum 0.9, no decay, batch 128, 12,500 steps,
cosine; validated every 1,250 steps, the best reported, which is mildly optimistic. Views of the
training pictures are not told; those of the middle, computed once, were chosen here."""

DINOV3 = LinearProtocol(
    name="dinov3",
    rates=DINO_RATES,
    scale_rates=True,
    batch=128,
    steps=12_500,
    selection="held-out",
    feature="image+patch-mean",
    views=2,
    margin=DINO_MARGIN,
)
"""DINOv3, `dinov3/eval/linear.py`: 13 rates at once on the image feature beside the mean of the
patches, random-resized views with flips. The rate is chosen on a tenth of the training pictures (as
CAPI does), not on the reported set; 'dinov3-test' does as its makers do."""

LINEAR: Mapping[str, LinearProtocol] = {
    "paper": PAPER,
    "dinov3": DINOV3,
    "dinov3-test": replace(DINOV3, name="dinov3-test", selection="test"),
    "paper-small": replace(
        PAPER, name="paper-small", steps=1_000, validate_every=1_000, selection="none"
    ),
    "dinov3-small": replace(DINOV3, name="dinov3-small", steps=1_000, views=4),
}
"""By name. The small ones take 1,000 steps; 'paper-small' reports the last one, and 'dinov3-small'
draws from four random views of each picture."""


@dataclass(frozen=True, kw_only=True)
class KnnProtocol:
    """Neighbors vote; nothing is fitted."""

    name: str

    ks: tuple[int, ...] = (10, 20, 100, 200)
    """Numbers of neighbors; more than there are training pictures are left out."""

    temperature: float = 0.07

    margin: float = DINO_MARGIN


@dataclass(frozen=True, kw_only=True)
class LogisticProtocol:
    """Logistic regression with a chosen penalty; `softmax_fit.py` tells how it is solved."""

    name: str

    config: LogisticConfig = field(default_factory=LogisticConfig)

    margin: float = 1.0


KNN: Mapping[str, KnnProtocol] = {"dinov2": KnnProtocol(name="dinov2")}
"""DINOv2, `dinov2/eval/knn.py`, as DINO and DINOv3: unit vectors, votes weighted by
exp(cosine / 0.07), the view of the middle of both parts."""

LOGISTIC: Mapping[str, LogisticProtocol] = {"dinov2": LogisticProtocol(name="dinov2")}
"""DINOv2 and DINOv3, `log_regression.py`: 45 values of C from 1e-6 to 1e5, chosen on the makers'
own part or on a tenth of the training pictures, then fitted on both; features as they are."""


def linear_protocol(name: str, data: LabeledDataset) -> LinearProtocol:
    """A protocol by name; the long ones with new views for every epoch, as far as is kept."""
    found = LINEAR[_checked(name, LINEAR)]
    if not found.views or name.endswith("-small") or data.train is None:
        return found
    epochs = math.ceil(found.steps * found.batch / len(data.train))
    return replace(found, views=min(max(epochs, found.views), MOST_VIEWS))


def knn_protocol(name: str) -> KnnProtocol:
    """A protocol by name."""
    return KNN[_checked(name, KNN)]


def logistic_protocol(name: str, data: LabeledDataset, seed: int) -> LogisticProtocol:
    """A protocol by name; C is chosen by what the set is known for."""
    found = LOGISTIC[_checked(name, LOGISTIC)]
    several = data.test.labels is not None and data.test.labels.ndim > 1
    metric: Literal["top1", "mean_per_class", "map"] = "map" if several else "top1"
    if data.per_class and not several:
        metric = "mean_per_class"
    return replace(found, config=replace(found.config, metric=metric, seed=seed))


def _checked(name: str, known: Mapping[str, object]) -> str:
    """The name, if it is one."""
    if name not in known:
        raise ValueError(f"there is no protocol {name!r} for this task; use {', '.join(known)}.")
    return name


Schedule = Literal["poly", "warmup-poly", "warmup-cosine", "one-cycle"]
"""See `dense_schedules.py`."""

Selection = Literal["none", "held-out", "test-best-step"]
"""What is chosen, and on what. 'none': nothing, the head of the last step is reported. 'held-out':
the rate, on the makers' own part for that or on pictures put aside from training, which the head
then never sees. 'test-best-step': the step, on the very pictures that are reported, a mild optimism
that the paper's numbers have."""

Inference = Literal["whole", "slide"]
"""Whether a test picture is shown whole or through windows (`windows.py`)."""


@dataclass(frozen=True, kw_only=True)
class SegmentationAugment:
    """How training views of a picture and its mask are drawn."""

    scales: tuple[float, float] = (0.5, 2.0)
    """Short side of the picture, before the cut, in sides of the view."""

    category_share: float = 0.75
    """Greatest share of one class in a view, of the pixels that count; else it is drawn again."""

    tries: int = 10
    """Draws of a place for that; the last one is taken in any case."""

    flip: float = 0.5
    """Share of the views that are mirrored."""

    distorted: float = 0.5
    """Share of the views that each change of colors below is applied to."""

    brightness: float = 32.0
    """Most that is added or taken away, of 255."""

    contrast: tuple[float, float] = (0.5, 1.5)
    """Factors of all colors; before or after the next two by chance."""

    saturation: tuple[float, float] = (0.5, 1.5)
    """Factors of the saturation."""

    hue: float = 0.1
    """Most that hues turn either way, in turns. MMSegmentation's 18 of 180 steps, of which OpenCV
    has two degrees each, are 0.1."""


@dataclass(frozen=True, kw_only=True)
class DepthAugment:
    """How training views of a picture and its depth are drawn."""

    crop: tuple[float, float] = (1.0, 1.0)
    """Height and width of a view in short sides of the picture, brought to the nearest patches."""

    rotation: float = 2.5
    """Most degrees either way, around the middle."""

    rotated: float = 0.5
    """Share of the views that are rotated."""

    flip: float = 0.5
    """Share of the views that are mirrored."""

    colored: float = 0.5
    """Share of the views whose colors are changed, in all of the ways below."""

    gamma: tuple[float, float] = (0.9, 1.1)
    """Exponents of colors within 0..1."""

    brightness: tuple[float, float] = (0.75, 1.25)
    """Factors of all colors."""

    channels: tuple[float, float] = (0.9, 1.1)
    """Factors of red, of green and of blue, each its own."""


@dataclass(frozen=True, kw_only=True)
class DenseProtocol:
    """A linear head on the patch features, and how it is fitted and judged."""

    name: str

    resolution: int = 512
    """Short side of test pictures, in pixels; brought down to whole patches of the model."""

    steps: int

    batch: int

    rates: tuple[float, ...]
    """Learning rates; more than one needs a selection."""

    betas: tuple[float, float] = (0.9, 0.999)

    decay: float
    """Of all parameters of the head, by AdamW."""

    schedule: Schedule

    warmup: int = 0
    """Steps of the two schedules that begin with one."""

    power: float = 1.0
    """Exponent of the two polynomial schedules."""

    floor: float = 0.0
    """Rate at which the polynomial schedules end."""

    clip: float | None = None
    """Greatest norm of the gradient of a head; None lets it be."""

    append_image_feature: bool
    """Whether each patch feature is followed by the image feature."""

    norm: Literal["batch", "none"] = "batch"
    """Whether channels are normalized over the batch before the linear layer."""

    dropout: float = 0.0
    """Share of the channels of a picture that is dropped before that."""

    inference: Inference = "whole"

    overlap: float = 1 - 341 / 512
    """Of sliding windows, in sides of a window."""

    views: int | None = None
    """Training views of each picture that are drawn once and whose features are kept, so that all
    seeds learn from the same ones; None draws new ones at every step."""

    loss_stride: int = 1
    """The loss is taken on every so many-th row and column of pixels, beginning at a place drawn
    anew in each step: without bias, and that much cheaper."""

    selection: Selection = "none"

    held_out: float = 0.1
    """Share of the training pictures that is put aside to choose on."""

    checks: int = 1
    """How many times, at equal distances and at the end, a head is kept to choose among."""

    def __post_init__(self) -> None:
        """Refuse what no head can be fitted with."""
        least = min(self.resolution, self.steps, self.batch, self.loss_stride, self.checks)
        if least < 1 or self.checks > self.steps or (self.views is not None and self.views < 1):
            raise ValueError(
                f"{self.name}: resolution, steps, batch, loss_stride, checks and views must be at "
                "least 1, and checks at most steps."
            )
        if not self.rates or (len(self.rates) > 1 and self.selection == "none"):
            raise ValueError(
                f"{self.name}: {len(self.rates)} rates with selection='none'; give one rate, or "
                "choose with 'held-out'."
            )
        if not (0 <= self.overlap < 1 and 0 <= self.dropout < 1 and 0 < self.held_out < 1):
            raise ValueError(
                f"{self.name}: overlap={self.overlap}, dropout={self.dropout} and "
                f"held_out={self.held_out} must be shares below 1."
            )

    def window_stride(self, window: int) -> int:
        """Pixels from one window to the next; 341 for windows of 512, as is usual."""
        return max(1, round(window * (1 - self.overlap)))

    def checked_steps(self) -> tuple[int, ...]:
        """Numbers of steps after which a head is kept; the last one is all of them."""
        return tuple(-(-self.steps * (part + 1) // self.checks) for part in range(self.checks))


@dataclass(frozen=True, kw_only=True)
class SegmentationProtocol(DenseProtocol):
    """A head that tells the class of each pixel, by cross-entropy of bilinearly scaled logits."""

    augment: SegmentationAugment = field(default_factory=SegmentationAugment)

    denominator: Literal["valid", "all"]
    """What the sum over pixels is divided by: those that count, or all, as in MMSegmentation, where
    pixels that do not count so lower the rate."""


@dataclass(frozen=True, kw_only=True)
class DepthProtocol(DenseProtocol):
    """A head that tells meters as the mean of fixed depths, weighted by its outputs."""

    augment: DepthAugment = field(default_factory=DepthAugment)

    bins: int = 256
    """Depths, from the least to the most that counts in the set."""

    spacing: Literal["linear", "log"] = "linear"
    """Whether depths lie at equal distances or at equal ratios."""

    upsample: int = 4
    """Outputs are scaled bilinearly by this before they become meters."""

    variance_weight: float = 0.15
    """Of the squared mean of the errors of the logarithm, beside their variance."""

    settling: int = 100
    """First steps, in which the mean alone is corrected."""

    flip_average: bool = True
    """Whether what is told of a test picture is averaged with what is told of its mirror image."""


@dataclass(frozen=True, kw_only=True)
class DenseKnnProtocol:
    """Patches labeled by the nearest labeled patches of training pictures; nothing is fitted."""

    name: str

    resolution: int = 512
    """Short side of pictures, training ones included, in pixels."""

    neighbors: tuple[int, ...] = (30,)
    """How many vote; the first one gives the metrics without a number in their name."""

    temperature: float = 0.07
    """A neighbor's vote is exp(cosine / temperature)."""

    bank: int = 32_768
    """Most labeled patches; of more, so many are drawn by the seed."""

    pictures: int = 2_000
    """Most training pictures that they are taken from; of more, so many are drawn by the seed."""

    def __post_init__(self) -> None:
        """Refuse what cannot vote."""
        if not self.neighbors or min(*self.neighbors, self.bank, self.pictures) < 1:
            raise ValueError(
                f"{self.name}: neighbors={self.neighbors}, bank={self.bank} and "
                f"pictures={self.pictures} must be at least 1."
            )
        if self.temperature <= 0:
            raise ValueError(f"{self.name}: temperature={self.temperature} must be above 0.")


PAPERS = ("paper", "paper-small")
"""Protocols that follow the paper, which has other values for some kinds of models."""

Fitted = TypeVar("Fitted", bound=DenseProtocol)

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
"""Steps of the paper's heads by set; others get those of the first."""

DENSE_PROTOCOLS_PAPER = SegmentationProtocol(
    name="paper",
    resolution=512,
    steps=20_000,
    batch=8,
    rates=(0.01,),
    betas=(0.9, 0.999),
    decay=1e-4,
    schedule="poly",
    power=0.9,
    floor=1e-4,
    append_image_feature=True,
    inference="slide",
    selection="test-best-step",
    checks=10,
    denominator="all",
)
"""The VECA paper, appendix A.5: image feature appended to each patch, AdamW 0.01, decay 1e-4,
polynomial schedule, batch 8, short side and crop 512, best validation mIoU of the run. What differs
for some models is in `for_model`.

It does not tell the following, for which MMSegmentation's usual values, which it built on, were
chosen here: power 0.9 to 1e-4, scales 0.5 to 2, flips and colors of the views, BatchNorm before
the linear layer, no dropout, loss over all pixels, windows of 512 every 341 pixels; ten
validations."""

DENSE_PROTOCOLS_DINOV3 = SegmentationProtocol(
    name="dinov3",
    resolution=512,
    steps=40_000,
    batch=16,
    rates=(1e-3,),
    decay=1e-3,
    schedule="warmup-cosine",
    warmup=1_500,
    append_image_feature=False,
    dropout=0.1,
    inference="slide",
    augment=SegmentationAugment(hue=0.5),
    denominator="all",
)
"""DINOv3, `config-ade20k-linear-training.yaml`: dropout, BatchNorm, linear layer on the last patch
features; windows of 512 every 341 pixels. Nothing is chosen on the validation part."""

SEGMENTATION: Mapping[str, SegmentationProtocol] = {
    "paper": DENSE_PROTOCOLS_PAPER,
    "dinov3": DENSE_PROTOCOLS_DINOV3,
    "dinov3-chosen": replace(
        DENSE_PROTOCOLS_DINOV3, name="dinov3-chosen", rates=(3e-4, 1e-3, 3e-3), selection="held-out"
    ),
    "paper-small": replace(
        DENSE_PROTOCOLS_PAPER,
        name="paper-small",
        resolution=256,
        steps=2_000,
        inference="whole",
        views=4,
        loss_stride=8,
        checks=4,
    ),
    "dinov3-small": replace(
        DENSE_PROTOCOLS_DINOV3,
        name="dinov3-small",
        resolution=256,
        steps=2_000,
        warmup=100,
        inference="whole",
        views=4,
        augment=SegmentationAugment(),
        loss_stride=8,
    ),
}
"""By name. The small ones: 2,000 steps at 256 pixels on four kept views of each picture, which both
share (so hues turn by up to 0.1), the loss on one pixel of 64, a test picture shown whole;
'paper-small' chooses among four steps."""

PAPER_DEPTH = DepthProtocol(
    name="paper",
    resolution=512,
    steps=38_400,
    batch=8,
    rates=(0.01,),
    betas=(0.9, 0.999),
    decay=1e-4,
    schedule="poly",
    power=0.9,
    floor=1e-4,
    append_image_feature=True,
    selection="test-best-step",
    checks=10,
)
"""The VECA paper, appendix A.5: as for segmentation, 38,400 steps, best validation RMSE of the run.
Head, range, loss, crops and views are not told; those of 'dinov3' were chosen here, with square
views of 512 pixels."""

DINOV3_DEPTH = DepthProtocol(
    name="dinov3",
    resolution=480,
    steps=38_400,
    batch=16,
    rates=(3e-4,),
    betas=(0.9, 0.99),
    decay=1e-4,
    schedule="one-cycle",
    warmup=12_800,
    clip=35.0,
    append_image_feature=False,
    augment=DepthAugment(crop=(416 / 480, 416 / 480)),
)
"""DINOv3, `config-nyu.yaml`: BatchNorm and a linear layer to 256 depths, fourfold upsampled as in
DINOv2's head; pictures at their own scale, which is a short side of 480 pixels on NYU and of 352 on
KITTI, views of 416 x 544 and (MDET) 352 x 704; of other sets squares of 416 / 480 short sides."""

DEPTH: Mapping[str, DepthProtocol] = {
    "paper": PAPER_DEPTH,
    "dinov3": DINOV3_DEPTH,
    "paper-small": replace(
        PAPER_DEPTH,
        name="paper-small",
        resolution=256,
        steps=1_500,
        views=4,
        upsample=1,
        loss_stride=4,
        checks=4,
    ),
    "dinov3-small": replace(
        DINOV3_DEPTH,
        name="dinov3-small",
        resolution=256,
        steps=1_500,
        rates=(3e-3,),
        warmup=500,
        views=4,
        upsample=1,
        loss_stride=4,
    ),
}
"""By name. The small ones: 1,500 steps at 256 pixels on four kept views of each picture, meters of
whole patches, the loss on one pixel of 16; 'paper-small' chooses among four steps, 'dinov3-small'
makes up for fewer steps by ten times the rate."""

DENSE_KNN: Mapping[str, DenseKnnProtocol] = {
    "dense-knn": DenseKnnProtocol(name="dense-knn"),
    "dense-knn-small": DenseKnnProtocol(name="dense-knn-small", resolution=256),
}
"""Ours: thirty neighbors vote with the temperature of kNN on images, 0.07, each with the shares of
the classes in it, from at most 32,768 patches of at most 2,000 training pictures."""


def segmentation_protocol(name: str, data: LabeledDataset) -> SegmentationProtocol:
    """A protocol by name, with the paper's number of steps for the set."""
    _check(name, SEGMENTATION)
    found = SEGMENTATION[name]
    return (
        replace(found, steps=PAPER_STEPS.get(data.name, found.steps)) if name == "paper" else found
    )


def depth_protocol(name: str, data: LabeledDataset) -> DepthProtocol:
    """A protocol by name, with the views that are usual for NYU and KITTI."""
    _check(name, DEPTH)
    found = DEPTH[name]
    if name != "dinov3" or data.depth is None:
        return found
    if data.depth.kb_crop:
        kitti = replace(found.augment, crop=(1.0, 704 / 352), brightness=(0.9, 1.1))
        return replace(found, resolution=352, augment=kitti)
    if data.depth.nyu_crop:
        return replace(found, augment=replace(found.augment, crop=(416 / 480, 544 / 480)))
    return found


def for_model(protocol: Fitted, model: FrozenModel) -> Fitted:
    """A protocol as its source has it for a kind of model.

    The paper shows patches of 14 pixels pictures of other sizes, and heads on SigLIP 2 see patches
    alone; all other protocols are the same for all models.
    """
    if protocol.name not in PAPERS:
        return protocol
    return replace(
        protocol,
        resolution=resolution_for(protocol.resolution, model.stride),
        append_image_feature=protocol.append_image_feature and model.append_image_feature,
    )


def dense_knn_protocol(name: str) -> DenseKnnProtocol:
    """A protocol by name."""
    _check(name, DENSE_KNN)
    return DENSE_KNN[name]


def _check(name: str, known: Mapping[str, object]) -> None:
    """Refuse an unknown name."""
    if name not in known:
        raise ValueError(f"there is no protocol {name!r} for this task; use {', '.join(known)}.")
