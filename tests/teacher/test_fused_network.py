"""EfficientNet-Lite without batch norms."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from veca.teacher.efficientnet import SAME, FusedNetwork, convolution

package = pytest.importorskip("efficientnet_lite_pytorch", reason="needs veca[teachers]")


@pytest.fixture(scope="module")
def network() -> Any:
    """The package's network, its norms as if they were trained."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        found = package.EfficientNet.from_name("efficientnet-lite2", image_size=None).eval()
        for module in found.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.uniform_(0.5, 1.5)
                module.bias.normal_()
                for statistics in (module.running_mean, module.running_var):
                    assert isinstance(statistics, Tensor)
                    statistics.uniform_(0.5, 2)
    return found


@pytest.mark.parametrize("size", [(64, 64), (96, 32)])
def test_with_the_zeros_of_the_package_it_gives_the_features_of_the_package(
    network: Any, size: tuple[int, int]
) -> None:
    pixels = torch.randn(2, 3, *size)
    with torch.no_grad():
        maps = FusedNetwork(network, SAME)(pixels)
        wanted = network.extract_features(pixels)
    torch.testing.assert_close(maps[32], wanted, atol=1e-4, rtol=1e-4)


def test_maps_come_at_their_strides_with_the_widths_that_are_told(network: Any) -> None:
    fused = FusedNetwork(network)
    with torch.no_grad():
        maps = fused(torch.randn(1, 3, 64, 96))
    shapes = {stride: tuple(found.shape[1:]) for stride, found in maps.items()}
    assert shapes == {8: (48, 8, 12), 16: (120, 4, 6), 32: (1280, 2, 3)}
    assert [fused.width_at(stride) for stride in (8, 16, 32)] == [48, 120, 1280]


@pytest.mark.parametrize("side", [3, 5])
@pytest.mark.parametrize("ahead", [False, True])
def test_a_strided_window_lies_ahead_of_the_middle_of_its_pixels_or_behind_it(
    side: int, ahead: bool
) -> None:
    bare, norm = nn.Conv2d(1, 1, side, stride=2, bias=False), nn.BatchNorm2d(1).eval()
    bare.weight.data.fill_(1)
    layers = nn.Sequential(*convolution(bare, norm, ahead))
    column = torch.arange(16.0).expand(1, 1, 16, 16)
    with torch.no_grad():
        places = layers(column)[0, 0, 4] / side**2  # the mean place under each window
    middles = torch.arange(8) * 2 + 0.5
    offset = 0.5 if ahead else -0.5
    inner = slice(1, 6)  # windows that hold no zeros
    torch.testing.assert_close(places[inner], middles[inner] + offset, atol=1e-3, rtol=1e-3)


def test_a_norm_is_folded_into_the_convolution_before_it() -> None:
    bare, norm = nn.Conv2d(4, 6, 3, bias=False), nn.BatchNorm2d(6)
    norm(torch.randn(8, 6, 4, 4) * 3 + 1)  # gathers statistics
    norm.eval()
    features = torch.randn(2, 4, 8, 8)
    with torch.no_grad():
        (fused,) = convolution(bare, norm)
        wanted = norm(F.conv2d(features, bare.weight, padding=1))
        torch.testing.assert_close(fused(features), wanted, atol=1e-5, rtol=1e-5)


def test_a_norm_without_statistics_cannot_be_folded() -> None:
    norm = nn.BatchNorm2d(6, track_running_stats=False)
    with pytest.raises(ValueError, match="no running statistics"):
        convolution(nn.Conv2d(4, 6, 3), norm)
