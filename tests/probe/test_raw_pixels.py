"""Raw pixels as features."""

import torch
from torch import Tensor

from veca.data.transforms import IMAGENET
from veca.probe.models import PixelModel
from veca.probe.rows import Setting

MODEL = PixelModel(torch.device("cpu"))


def images(height: int = 32, width: int = 48) -> Tensor:
    return torch.randint(0, 256, (2, 3, height, width), dtype=torch.uint8)


def test_a_patch_is_the_means_of_its_sixteen_cells_colors_first() -> None:
    pictures = images()
    pixels = IMAGENET.normalize(pictures)
    found = MODEL.observe(pictures, Setting()).patches
    assert found.shape == (2, 48, 2, 3)
    for row, column in ((0, 0), (1, 2)):
        patch = pixels[:, :, 16 * row : 16 * row + 16, 16 * column : 16 * column + 16]
        cells = patch.reshape(2, 3, 4, 4, 4, 4).mean(dim=(3, 5))
        torch.testing.assert_close(found[:, :, row, column], cells.flatten(1))


def test_an_image_is_the_means_of_256_cells_of_whatever_size() -> None:
    for height, width in ((16, 16), (32, 48), (64, 32)):
        pictures = images(height, width)
        pixels = IMAGENET.normalize(pictures)
        cells = pixels.reshape(2, 3, 16, height // 16, 16, width // 16).mean(dim=(3, 5))
        found = MODEL.observe(pictures, Setting()).image
        torch.testing.assert_close(found, cells.flatten(1))


def test_it_says_what_it_is() -> None:
    facts = MODEL.describe()
    assert (facts["name"], facts["trained"], facts["licence"]) == ("pixels", False, None)
    assert (facts["image_width"], facts["patch_width"]) == (768, 48)
    assert PixelModel(torch.device("cpu")).digest == MODEL.digest
    assert MODEL.gflops((32, 32), Setting()) is None  # no products are taken
