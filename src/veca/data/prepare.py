"""The door for pictures: anything that is one goes in, what a backbone sees comes out.

`prepare` is the whole way: decode, choose the sides, resample, normalise, pad. What files and
arrays are taken is said in `opening.py` and `arrays.py`, what colours become in `colours.py`, what
sides become in `fit.py`, how they are resampled in `picture.py`.
"""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from veca.data.decode import Source, decode
from veca.data.fit import Fit, check_result, fitted
from veca.data.geometry import Geometry
from veca.data.normalisation import IMAGENET, Normalisation
from veca.data.opening import MOST_PIXELS


class Prepared(NamedTuple):
    """A picture as a backbone sees it, and the way back to its pixels."""

    pixels: Float[Tensor, "3 height width"]
    """Normalised; sides are multiples of the patch size."""

    geometry: Geometry


def prepare(  # noqa: PLR0913 - the door, where everything can be chosen
    image: Source,
    size: int | None = 512,
    fit: Fit = "resize",
    *,
    patch_size: int = 16,
    normalisation: Normalisation = IMAGENET,
    most_pixels: int = MOST_PIXELS,
) -> Prepared:
    """Prepare one picture for a backbone, with the geometry that leads back to its pixels.

    Args:
        image: A path, bytes, an open binary file, a PIL image, a numpy array or a torch tensor.
            EXIF orientation is applied, transparency lies on white, of animations the first frame
            is taken.
        size: The short side in pixels ('pad': the long one); None keeps the resolution.
        fit: 'resize' keeps all and bends the proportions by at most half a patch on either side;
            'crop' cuts a centred square out; 'pad' keeps all in its proportions and pads right and
            below with the mean colour, which is zero after normalisation.
        patch_size: Of the model, as in `model.config.patch_size`.
        normalisation: Of the model; another only for models of other makers.
        most_pixels: Larger pictures, before or after, are refused before they take memory.

    Raises:
        PictureError: What was passed is no picture that can be used.
    """
    picture = decode(image, most_pixels)
    geometry = fitted(picture.sides, size, fit, patch_size)
    check_result(geometry, most_pixels)

    height, width = geometry.height, geometry.width
    (top, bottom), (left, right) = height.box(), width.box()
    sides = min(height.scaled, height.length), min(width.scaled, width.length)
    pixels = picture.resampled(sides, (left, top, right, bottom)).pixels()
    pixels = normalisation.normalise(pixels)
    pixels = F.pad(pixels, (0, width.length - sides[1], 0, height.length - sides[0]))
    return Prepared(pixels, geometry)


def preprocess(  # noqa: PLR0913 - as prepare
    image: Source,
    size: int | None = 512,
    fit: Fit = "resize",
    *,
    patch_size: int = 16,
    normalisation: Normalisation = IMAGENET,
    most_pixels: int = MOST_PIXELS,
) -> Float[Tensor, "3 height width"]:
    """What `prepare` makes of a picture, without the way back."""
    return prepare(
        image,
        size,
        fit,
        patch_size=patch_size,
        normalisation=normalisation,
        most_pixels=most_pixels,
    ).pixels
