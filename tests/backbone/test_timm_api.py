"""timm's and DINO's names do what timm's and DINO's models do."""

import re

import pytest
import torch
from torch import Tensor

import veca
from veca.backbone.config import BackboneConfig


@pytest.fixture(scope="module")
def model() -> veca.VECA:
    torch.manual_seed(0)
    config = BackboneConfig(layers=4, width=32, heads=2, patch_size=4, budgets=(3, 6))
    return veca.VECA(config).eval()


@pytest.fixture(scope="module")
def images() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(2, 3, 8, 12)


def test_forward_features_gives_all_tokens_cores_first(model: veca.VECA, images: Tensor) -> None:
    tokens = model.forward_features(images, budget=4)
    features = model(images, 4)
    assert torch.equal(tokens[:, :4], features.cores)
    assert torch.equal(tokens[:, 4:], features.patches)
    whole = model.forward_features(images)
    assert whole.shape == (2, model.num_prefix_tokens + 6, model.num_features)


def test_forward_intermediates_gives_final_tokens_and_maps(
    model: veca.VECA, images: Tensor
) -> None:
    final, maps = model.forward_intermediates(images, indices=2)
    assert torch.equal(final, model.forward_features(images))
    expected = model.intermediates(images, (2, 3), norm=False)
    assert [item.shape for item in maps] == [(2, 32, 2, 3)] * 2
    for mine, other in zip(maps, expected, strict=True):
        torch.testing.assert_close(mine, other.patch_map)


def test_forward_intermediates_can_give_only_normalized_token_lists(
    model: veca.VECA, images: Tensor
) -> None:
    tokens = model.forward_intermediates(
        images, indices=[-1, 0], norm=True, output_fmt="NLC", intermediates_only=True
    )
    expected = model.intermediates(images, (0, 3))  # the order of the network
    for mine, other in zip(tokens, expected, strict=True):
        torch.testing.assert_close(mine, other.patches)


def test_forward_intermediates_can_give_the_cores_beside(model: veca.VECA, images: Tensor) -> None:
    ((item, cores),) = model.forward_intermediates(
        images, indices=[1], return_prefix_tokens=True, intermediates_only=True, budget=4
    )
    (expected,) = model.intermediates(images, (1,), 4, norm=False)
    torch.testing.assert_close(item, expected.patch_map)
    torch.testing.assert_close(cores, expected.cores)


def test_stopping_early_ends_with_the_last_layer_taken(model: veca.VECA, images: Tensor) -> None:
    final, _ = model.forward_intermediates(images, indices=[1], stop_early=True)
    (expected,) = model.intermediates(images, (1,))
    torch.testing.assert_close(final, torch.cat((expected.cores, expected.patches), dim=1))


def test_maps_are_contiguous_as_timms_are(model: veca.VECA, images: Tensor) -> None:
    for output_fmt in ("NCHW", "NLC"):
        maps = model.forward_intermediates(images, output_fmt=output_fmt, intermediates_only=True)
        assert all(item.is_contiguous() for item in maps)
    assert all(item.is_contiguous() for item in model.get_intermediate_layers(images, 2, True))


def test_no_indices_mean_every_layer(model: veca.VECA, images: Tensor) -> None:
    assert len(model.forward_intermediates(images, intermediates_only=True)) == 4


def test_get_intermediate_layers_follows_dino(model: veca.VECA, images: Tensor) -> None:
    (last,) = model.get_intermediate_layers(images)
    torch.testing.assert_close(last, model(images).patches)
    found = model.get_intermediate_layers(images, n=[1, 3], reshape=True, return_class_token=True)
    expected = model.intermediates(images, (1, 3))
    for (patches, token), other in zip(found, expected, strict=True):
        torch.testing.assert_close(patches, other.patch_map)
        torch.testing.assert_close(token, other.image)
    (raw,) = model.get_intermediate_layers(images, n=1, norm=False)
    torch.testing.assert_close(model.final_norm(raw), last)


@pytest.mark.parametrize("indices", [0, 5, [4], [-5], []])
def test_layers_that_are_not_there_are_refused(
    model: veca.VECA, images: Tensor, indices: int | list[int]
) -> None:
    with pytest.raises(ValueError, match=r"not available|is outside -4|no layers are given"):
        model.get_intermediate_layers(images, indices)


def test_an_unknown_format_is_refused_with_the_known_ones(model: veca.VECA, images: Tensor) -> None:
    with pytest.raises(ValueError, match="use 'NCHW' or 'NLC'"):
        model.forward_intermediates(images, output_fmt="NHWC")


def test_feature_info_names_a_module_for_every_layer(model: veca.VECA) -> None:
    assert model.embed_dim == 32
    for info in model.feature_info:
        assert (info["num_chs"], info["reduction"]) == (32, 4)
        model.get_submodule(info["module"])
    assert len(model.feature_info) == 4


def test_cores_points_and_scales_are_excluded_from_weight_decay(model: veca.VECA) -> None:
    spared = model.no_weight_decay()
    names = dict(model.named_parameters())
    assert spared <= set(names)
    assert {"core_bank.tokens.0", "core_bank.points.1", "core_steps.2.scale"} <= spared
    assert not any("blocks" in name for name in spared)


@pytest.mark.parametrize("coarse", [False, True])
def test_the_group_matcher_places_every_parameter(model: veca.VECA, coarse: bool) -> None:
    matcher = model.group_matcher(coarse)
    patterns = [matcher["stem"], *(pattern for pattern, _ in matcher["blocks"])]
    for name, _ in model.named_parameters():
        assert len([pattern for pattern in patterns if re.match(pattern, name)]) == 1
    assert re.match(matcher["stem"], "core_bank.points.1")
    numbered = re.match(patterns[1], "core_steps.2.head.weight")
    assert numbered is not None
    assert numbered.group(1) == "2"
