"""Protocols of classification probes: named, frozen, each with its source.

Those of dense tasks stand in `dense_protocols.py`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from veca.data.labelled import LabelledSet
from veca.probe.linear_protocol import LinearProtocol
from veca.probe.logistic import LogisticConfig

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
    """Neighbours vote; nothing is fitted."""

    name: str

    ks: tuple[int, ...] = (10, 20, 100, 200)
    """Numbers of neighbours; more than there are training pictures are left out."""

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


def linear_protocol(name: str, data: LabelledSet) -> LinearProtocol:
    """A protocol by name; the long ones with new views for every epoch, as far as is kept."""
    found = LINEAR[_checked(name, LINEAR)]
    if not found.views or name.endswith("-small") or data.train is None:
        return found
    epochs = math.ceil(found.steps * found.batch / len(data.train))
    return replace(found, views=min(max(epochs, found.views), MOST_VIEWS))


def knn_protocol(name: str) -> KnnProtocol:
    """A protocol by name."""
    return KNN[_checked(name, KNN)]


def logistic_protocol(name: str, data: LabelledSet, seed: int) -> LogisticProtocol:
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
