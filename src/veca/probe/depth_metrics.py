"""How well depth is told: errors of each picture, then their mean over pictures.

Papers report the mean of each picture's own error. Over the pixels of all pictures together the
root mean square is larger; it is reported too, as `rmse_pooled`.
"""

from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from veca.data.labelled import DepthFacts
from veca.probe.windows import Sides

NYU_SIDES = (480, 640)

CROPS: Mapping[str, tuple[float, float, float, float]] = {
    "garg-kitti": (0.40810811, 0.99189189, 0.03594771, 0.96405229),
    "eigen-kitti": (0.3324324, 0.91351351, 0.0359477, 0.96405229),
}
"""First and last row and column that count, as shares of the height and width, cut to whole pixels;
of the picture as it is used, so after KITTI's cut to 352 x 1216 where that is made."""

UNITS: Mapping[str, str] = {
    "rmse": "m",
    "rmse_pooled": "m",
    "abs_rel": "",
    "sq_rel": "m",
    "log10": "",
    "rmse_log": "",
    "silog": "",
    "delta1": "%",
    "delta2": "%",
    "delta3": "%",
}
"""Every metric with its unit. 'silog' is a hundred times the deviation of the logarithm's error."""

PER_PICTURE = tuple(name for name in UNITS if name != "rmse_pooled")


def crop_mask(sides: Sides, crop: str) -> Bool[Tensor, "height width"]:
    """The pixels of a test picture that count, by the set's convention."""
    mask = torch.zeros(sides, dtype=torch.bool)
    if crop == "none":
        mask[:] = True
    elif crop == "eigen-nyu":
        if sides != NYU_SIDES:
            raise ValueError(
                f"Eigen's crop of NYU is for pictures of 480 x 640, not {sides[0]} x {sides[1]}; "
                "use the pictures as published, or crop='none'."
            )
        mask[45:471, 41:601] = True
    elif crop in CROPS:
        top, bottom, left, right = CROPS[crop]
        height, width = sides
        mask[int(top * height) : int(bottom * height), int(left * width) : int(right * width)] = 1
    else:
        raise ValueError(f"crop={crop!r} is unknown; use 'none', 'eigen-nyu', {', '.join(CROPS)}.")
    return mask


def counted(
    depth: Float[Tensor, "height width"], facts: DepthFacts
) -> Bool[Tensor, "height width"]:
    """The pixels whose depth is known, in range and within the crop."""
    height, width = depth.shape
    mask = crop_mask((height, width), facts.crop).to(depth.device)
    return mask & (depth > facts.least) & (depth < facts.most)


def picture_errors(
    found: Float[Tensor, "height width"],
    depth: Float[Tensor, "height width"],
    mask: Bool[Tensor, "height width"],
) -> NDArray[np.float64]:
    """The errors of one picture in the order of `PER_PICTURE`, then squares and pixels to pool.

    Where no pixel counts, errors are not a number and the rest is 0.
    """
    told, true = found[mask].double(), depth[mask].double()
    if not len(true):
        return np.array([np.nan] * len(PER_PICTURE) + [0.0, 0.0])
    squares = (told - true).square()
    log = told.log() - true.log()
    ratio = torch.maximum(told / true, true / told)
    values = {
        "rmse": squares.mean().sqrt(),
        "abs_rel": ((told - true).abs() / true).mean(),
        "sq_rel": (squares / true).mean(),
        "log10": (told.log10() - true.log10()).abs().mean(),
        "rmse_log": log.square().mean().sqrt(),
        # Rounding may leave a variance of nothing just below 0.
        "silog": 100 * (log.square().mean() - log.mean().square()).clamp(min=0).sqrt(),
        **{f"delta{n}": 100 * (ratio < 1.25**n).double().mean() for n in (1, 2, 3)},
    }
    errors = [float(values[name]) for name in PER_PICTURE]
    return np.array([*errors, float(squares.sum()), float(len(true))])


def depth_metrics(errors: NDArray[np.float64]) -> dict[str, float]:
    """Every metric by its name, from the errors of all pictures (N, ...)."""
    judged = errors[errors[:, -1] > 0]
    if not len(judged):
        raise ValueError(
            "no pixel of any test picture has a known depth in range; check the unit of the depth "
            "files and the least and most depth of the set."
        )
    found = dict(zip(PER_PICTURE, judged[:, : len(PER_PICTURE)].mean(0).tolist(), strict=True))
    squares, pixels = judged[:, -2:].sum(0).tolist()
    return found | {"rmse_pooled": float(np.sqrt(squares / pixels))}
