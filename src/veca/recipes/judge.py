"""What a student has learned: do pictures that its features call alike show the same thing?

Labeled generated pictures are judged, none of which was trained on. For each one the nearest other
one is found by the angle between their features; the accuracy is how often the two show the same.
Nothing is fitted, so that nothing but the features can be the reason.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypedDict

import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from veca.backbone.model import VECA
from veca.data.generated import generated_picture
from veca.data.transforms import prepare
from veca.recipes.quick_pictures import SIDE
from veca.runtime.device import seed_for

PIXELS_SIDE = 32
"""Side in pixels at which raw pixels are compared."""

BATCH = 64
"""Pictures that go through a model together."""

BLOCK = 1024
"""Pictures whose neighbors are looked for together, which bounds memory."""


class Row(TypedDict):
    """One line of a judgment."""

    model: str
    budget: int | None
    """Cores that were used; None where there is no choice."""
    accuracy: float
    """In percent; guessing would reach 100 / len(LABELS)."""


class Judged(NamedTuple):
    """Pictures with their labels."""

    pictures: list[Image.Image]
    labels: Int[Tensor, " N"]


def judge(models: Mapping[str, VECA], *, resolution: int, seed: int, count: int = 400) -> list[Row]:
    """Judge raw pixels, then each model with each of its budgets, all on the same pictures."""
    pictures, labels = judged_pictures(seed, count)
    rows = [_row("raw pixels", None, raw_pixels(pictures), labels)]
    for name, model in models.items():
        config = model.config
        images = _prepared(pictures, resolution, config.patch_size)
        budgets = (None,) if config.attention == "full" else config.budgets
        rows += [_row(name, budget, image_features(model, images, budget), labels)
                 for budget in budgets]  # fmt: skip
    return rows


def judged_pictures(seed: int, count: int) -> Judged:
    """The labeled pictures of a seed; those to train on are drawn from other series."""
    series = seed_for(seed, 0, "judged pictures")
    made = [generated_picture(series, number, SIDE) for number in range(count)]
    return Judged([picture for picture, _ in made], torch.tensor([label for _, label in made]))


def raw_pixels(pictures: Sequence[Image.Image]) -> Float[Tensor, "N D"]:
    """Small pictures as they are, each less its mean color, which would decide alone."""
    pixels = _prepared(pictures, PIXELS_SIDE, patch_size=1)
    return (pixels - pixels.mean(dim=(2, 3), keepdim=True)).flatten(1)


def image_features(
    model: VECA, images: Float[Tensor, "N 3 height width"], budget: int | None
) -> Float[Tensor, "N D"]:
    """Image features in batches, in evaluation mode, whatever mode the model is left in."""
    weight = next(model.parameters())
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            batches = [batch.to(weight.device, weight.dtype) for batch in images.split(BATCH)]
            return torch.cat([model(batch, budget).image.cpu() for batch in batches])
    finally:
        model.train(training)


def nearest_neighbor_accuracy(features: Float[Tensor, "N D"], labels: Int[Tensor, " N"]) -> float:
    """Percentage whose nearest other one, by cosine similarity, has the same label.

    The mean feature is taken away first: it tells nothing apart, yet in many networks it outweighs
    all that does. Of several that are equally near, the first counts.
    """
    if len(features) < 2 or not features.isfinite().all():
        raise ValueError(
            f"{len(features)} features have no nearest neighbors unless they are two or more and "
            "finite; judge more pictures, or a model without NaN."
        )
    centered = features.double()
    centered = F.normalize(centered - centered.mean(dim=0), dim=1)
    hits = 0
    for start in range(0, len(centered), BLOCK):
        similarities = centered[start : start + BLOCK] @ centered.T
        similarities.diagonal(start).fill_(-torch.inf)  # not itself
        hits += int((labels[similarities.argmax(dim=1)] == labels[start : start + BLOCK]).sum())
    return 100 * hits / len(features)


def _prepared(
    pictures: Sequence[Image.Image], resolution: int, patch_size: int
) -> Float[Tensor, "N 3 height width"]:
    """Pictures as a model sees them."""
    return torch.stack(
        [prepare(picture, resolution, patch_size=patch_size).pixels for picture in pictures]
    )


def _row(
    name: str, budget: int | None, features: Float[Tensor, "N D"], labels: Int[Tensor, " N"]
) -> Row:
    """The line of one set of features."""
    accuracy = nearest_neighbor_accuracy(features, labels)
    return Row(model=name, budget=budget, accuracy=accuracy)
