"""What a saved head tells of new pictures: which model it needs, and the labels that it gives."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from veca.data.picture import Picture
from veca.data.views import ViewConfig, centre_view, least_side
from veca.probe.features import ImageFeatures
from veca.probe.heads import LinearHead
from veca.probe.kept_results import HEADS_FOLDER
from veca.probe.models import ProbeModel, find_probe_model
from veca.probe.neighbours import knn
from veca.probe.saved_heads import FACTS_NAME, HeadError, SavedHead
from veca.probe.vectors import side_by_side

DENSE_TASKS = ("segmentation", "dense-knn", "depth")


class Told(NamedTuple):
    """A class that a head tells, with the share of its trust that it gives it."""

    label: str
    share: float


def model_of(head: SavedHead, device: torch.device, moved: str | None = None) -> ProbeModel:
    """The backbone of a head, known by its hash; `moved` says where it is now."""
    name = moved or head.model
    try:
        model = find_probe_model(name, device)
    except (ValueError, OSError) as error:
        if moved is not None:
            raise
        raise HeadError(
            f"the model of the head, {name}, cannot be had ({str(error).rstrip('.')}); say with "
            "--model where it is now."
        ) from error
    if model.digest != head.weights:
        raise HeadError(
            f"{name} is not the model that the head was fitted on (its weights hash to "
            f"{str(model.digest)[:12]}, not {str(head.weights)[:12]}); name the right one with "
            "--model, or fit the head again."
        )
    model.precision = head.precision
    return model


def shown_least_side(head: SavedHead, model: ProbeModel) -> int | None:
    """The `least_side` to decode new pictures with, so that they are shown as test pictures were.

    None for dense heads, whose pictures are decoded whole.
    """
    if head.task in DENSE_TASKS:
        return None
    return least_side(model.fitted_side(head.resolution), _views(head))


def predict_labels(
    model: ProbeModel, head: SavedHead, picture: Picture, top: int = 5
) -> list[Told]:
    """The likeliest classes of a picture, the first the likeliest."""
    side = model.fitted_side(head.resolution)
    view = centre_view(picture, side, _views(head))
    frozen = model.observe(view[None], head.setting)
    shares = _shares(head, ImageFeatures(frozen.image, frozen.patches.flatten(2).mean(2)))
    best = shares.sort(descending=True, stable=True)  # equals in the order of the metrics
    return [
        Told(head.classes[number], share)
        for share, number in zip(best.values[:top].tolist(), best.indices.tolist(), strict=False)
    ]


def _views(head: SavedHead) -> ViewConfig:
    """How test pictures were cut for a head of classes."""
    return ViewConfig(margin=float(head.facts["margin"]))


def _shares(head: SavedHead, features: ImageFeatures) -> Tensor:
    """How much trust each class gets: the sum is one, but for votes of pictures with several."""
    tensors = head.tensors
    vector = side_by_side(features, head.facts["feature"]).cpu()
    if head.task == "knn":
        k = int(head.facts["neighbours"])
        votes = knn(
            tensors["features"], tensors["labels"], vector, len(head.classes),
            ks=(k,), temperature=float(head.facts["temperature"]),
        )  # fmt: skip
        return votes[k][0]
    return LinearHead(weight=tensors["weight"], bias=tensors["bias"]).probabilities(vector)[0]


def heads_below(folder: Path) -> list[Path]:
    """Heads in a folder that veca probe wrote, or in its folder of heads."""
    places = (f"{HEADS_FOLDER}/*/{FACTS_NAME}", f"*/{FACTS_NAME}")
    return sorted(path.parent for place in places for path in folder.glob(place))
