"""Saved heads of dense tasks on new pictures: a class or a depth for each pixel."""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from veca.data.picture import Picture
from veca.probe.dense_heads import head_from
from veca.probe.dense_neighbours import voted_maps
from veca.probe.depth import told_depth
from veca.probe.depth_scale import scale_from
from veca.probe.models import ProbeModel
from veca.probe.patch_bank import PatchBank
from veca.probe.saved_heads import HeadError, SavedHead
from veca.probe.shown_features import Kind, Showing, observe_shown
from veca.probe.windows import strongest


@torch.no_grad()
def predict_classes(
    model: ProbeModel, head: SavedHead, picture: Picture
) -> UInt8[Tensor, "height width"]:
    """The class of each pixel of a picture, at its own size, by a number of `head.classes`."""
    _check_task(head, ("segmentation", "dense-knn"))
    observed, layout = observe_shown(model, picture, _showing(model, head), Kind(head.setting))
    if head.task == "segmentation":
        maps = head_from(head.tensors, head.facts).to(model.device).maps(observed)
    else:
        bank = PatchBank(
            *(head.tensors[name].to(model.device).float() for name in ("features", "shares"))
        )
        count = int(head.facts["neighbours"])
        maps = voted_maps(observed, bank, (count,), float(head.facts["temperature"]))[count]
    return strongest(maps, layout).cpu()


@torch.no_grad()
def predict_depth(
    model: ProbeModel, head: SavedHead, picture: Picture
) -> Float[Tensor, "height width"]:
    """The metres of each pixel of a picture, at its own size."""
    _check_task(head, ("depth",))
    showing = _showing(model, head)
    flips = (False, True) if head.facts["flip_average"] else (False,)
    shown = [observe_shown(model, picture, showing, Kind(head.setting, flip)) for flip in flips]
    views = [(observed, flip) for (observed, _), flip in zip(shown, flips, strict=True)]
    fitted = head_from(head.tensors, head.facts).to(model.device)
    return told_depth(fitted, scale_from(head.facts["scale"]), views, shown[0][1]).cpu()


def _check_task(head: SavedHead, tasks: tuple[str, ...]) -> None:
    """Refuse a head of another task."""
    if head.task not in tasks:
        raise HeadError(
            f"the head is of the task {head.task!r}; this needs one of {' or '.join(tasks)}."
        )


def _showing(model: ProbeModel, head: SavedHead) -> Showing:
    """How pictures are shown, which must fit the model."""
    showing = Showing(**head.facts["showing"])
    if showing.multiple != model.stride:
        raise HeadError(
            f"the head was fitted on patches of {showing.multiple} pixels, but {model.name} has "
            f"{model.stride}; use the model that it names, {head.model}."
        )
    return showing
