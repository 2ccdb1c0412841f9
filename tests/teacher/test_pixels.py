"""What a teacher sees, and weights that act on a student's pixels."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from veca.data.transforms import IMAGENET, Normalization
from veca.teacher.teacher import for_imagenet, resized

SHARE = st.floats(0.05, 0.95)
COLOR = st.tuples(SHARE, SHARE, SHARE)


def test_images_of_the_right_size_keep_their_pixels() -> None:
    images = torch.randint(0, 256, (2, 3, 8, 12), dtype=torch.uint8)
    assert torch.equal(resized(images, (8, 12)), images / 255)


def test_a_plain_image_stays_plain_at_every_size() -> None:
    images = torch.full((1, 3, 8, 8), 51, dtype=torch.uint8)
    torch.testing.assert_close(resized(images, (14, 28)), torch.full((1, 3, 14, 28), 0.2))


def test_resized_pixels_stay_within_0_and_1_at_hard_edges() -> None:
    images = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    images[..., 4:] = 255
    larger = resized(images, (32, 32))
    assert larger.min() == 0
    assert larger.max() == 1


def test_a_smaller_image_averages_over_all_pixels() -> None:
    stripes = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    stripes[..., ::2] = 255  # without averaging some columns would be all white or all black
    smaller = resized(stripes, (4, 4))
    torch.testing.assert_close(smaller, torch.full((1, 3, 4, 4), 0.5), atol=0.05, rtol=0)


@given(mean=COLOR, std=COLOR)
def test_folded_weights_do_to_imagenet_pixels_what_the_own_ones_do_to_their_own(
    mean: tuple[float, float, float], std: tuple[float, float, float]
) -> None:
    own = Normalization(mean, std)
    draw = torch.Generator().manual_seed(0)
    pixels = torch.rand(2, 3, 8, 12, generator=draw, dtype=torch.float64)
    weight = torch.randn(5, 3, 4, 4, generator=draw, dtype=torch.float64)
    bias = torch.randn(5, generator=draw, dtype=torch.float64)
    wanted = F.conv2d(own.normalize(pixels), weight, bias, stride=4)
    found = F.conv2d(IMAGENET.normalize(pixels), *for_imagenet(weight, bias, own), stride=4)
    torch.testing.assert_close(found, wanted)


def test_folded_weights_keep_their_type_and_have_no_gradient() -> None:
    weight = torch.randn(5, 3, 4, 4, requires_grad=True)
    folded, bias = for_imagenet(weight, torch.zeros(5), IMAGENET)
    assert folded.dtype == bias.dtype == torch.float32
    assert not folded.requires_grad
    torch.testing.assert_close(folded, weight.detach())
