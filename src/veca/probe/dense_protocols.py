"""The protocols of dense probes by name, each with its source.

'paper' is the VECA paper's, as far as it tells; 'dinov3' is DINOv3's published configuration;
'dinov3-chosen' is the same with the rate chosen on pictures put aside from training. Those that end
in '-small' are ours for sets of some hundred pictures: a few thousand steps on kept views, pictures
shown whole. Their numbers compare models measured by the same protocol, and nothing else.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from veca.data.labelled import LabelledSet
from veca.probe.dense_config import (
    DenseKnnProtocol,
    DenseProtocol,
    DepthAugment,
    DepthProtocol,
    SegmentationAugment,
    SegmentationProtocol,
)
from veca.probe.frozen import ProbeModel
from veca.probe.paper_sides import paper_side

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

PAPER = SegmentationProtocol(
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
    append_image=True,
    inference="slide",
    selection="test-best-step",
    checks=10,
    denominator="all",
)
"""The VECA paper, appendix A.5: image feature appended to each patch, AdamW 0.01, decay 1e-4,
polynomial schedule, batch 8, short side and crop 512, best validation mIoU of the run. What differs
for some models is in `for_model`.

It does not tell the following, for which MMSegmentation's usual values, which it built on, were
chosen here: power 0.9 to 1e-4, scales 0.5 to 2, flips and colours of the views, BatchNorm before
the linear layer, no dropout, loss over all pixels, windows of 512 every 341 pixels; ten
validations."""

DINOV3 = SegmentationProtocol(
    name="dinov3",
    resolution=512,
    steps=40_000,
    batch=16,
    rates=(1e-3,),
    decay=1e-3,
    schedule="warmup-cosine",
    warmup=1_500,
    append_image=False,
    dropout=0.1,
    inference="slide",
    augment=SegmentationAugment(hue=0.5),
    denominator="all",
)
"""DINOv3, `config-ade20k-linear-training.yaml`: dropout, BatchNorm, linear layer on the last patch
features; windows of 512 every 341 pixels. Nothing is chosen on the validation part."""

SEGMENTATION: Mapping[str, SegmentationProtocol] = {
    "paper": PAPER,
    "dinov3": DINOV3,
    "dinov3-chosen": replace(
        DINOV3, name="dinov3-chosen", rates=(3e-4, 1e-3, 3e-3), selection="held-out"
    ),
    "paper-small": replace(
        PAPER,
        name="paper-small",
        resolution=256,
        steps=2_000,
        inference="whole",
        views=4,
        loss_stride=8,
        checks=4,
    ),
    "dinov3-small": replace(
        DINOV3,
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
    append_image=True,
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
    append_image=False,
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
"""By name. The small ones: 1,500 steps at 256 pixels on four kept views of each picture, metres of
whole patches, the loss on one pixel of 16; 'paper-small' chooses among four steps, 'dinov3-small'
makes up for fewer steps by ten times the rate."""

DENSE_KNN: Mapping[str, DenseKnnProtocol] = {
    "dense-knn": DenseKnnProtocol(name="dense-knn"),
    "dense-knn-small": DenseKnnProtocol(name="dense-knn-small", resolution=256),
}
"""Ours: thirty neighbours vote with the temperature of kNN on images, 0.07, each with the shares of
the classes in it, from at most 32,768 patches of at most 2,000 training pictures."""


def segmentation_protocol(name: str, data: LabelledSet) -> SegmentationProtocol:
    """A protocol by name, with the paper's number of steps for the set."""
    _check(name, SEGMENTATION)
    found = SEGMENTATION[name]
    return (
        replace(found, steps=PAPER_STEPS.get(data.name, found.steps)) if name == "paper" else found
    )


def depth_protocol(name: str, data: LabelledSet) -> DepthProtocol:
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


def for_model(protocol: Fitted, model: ProbeModel) -> Fitted:
    """A protocol as its source has it for a kind of model.

    The paper shows patches of 14 pixels pictures of other sizes, and heads on SigLIP 2 see patches
    alone; all other protocols are the same for all models.
    """
    if protocol.name not in PAPERS:
        return protocol
    return replace(
        protocol,
        resolution=paper_side(protocol.resolution, model.stride),
        append_image=protocol.append_image and model.facts.appended,
    )


def dense_knn_protocol(name: str) -> DenseKnnProtocol:
    """A protocol by name."""
    _check(name, DENSE_KNN)
    return DENSE_KNN[name]


def _check(name: str, known: Mapping[str, object]) -> None:
    """Refuse an unknown name."""
    if name not in known:
        raise ValueError(f"there is no protocol {name!r} for this task; use {', '.join(known)}.")
