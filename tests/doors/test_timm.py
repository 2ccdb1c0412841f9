"""VECA in the real timm: what timm's own model tests ask of every model. `make doors` runs it.

timm needs torchvision, whose usual wheel does not load beside a CPU build of torch, unless two
operators of its compiled part are declared first.
"""

import importlib.util
from typing import Any

import pytest
import torch

if importlib.util.find_spec("timm") is None:
    pytest.skip("timm is not installed; run `make doors`", allow_module_level=True)

_OPERATORS = torch.library.Library("torchvision", "FRAGMENT")
if torch.version.cuda is None:
    for name in ("nms", "qnms"):
        _OPERATORS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import timm  # noqa: E402
from timm.data import create_transform, resolve_data_config  # noqa: E402

import veca  # noqa: E402
import veca.timm  # noqa: E402
from veca.data.transforms import MEAN  # noqa: E402

SIZES = ("veca_tiny", "veca_small", "veca_small_plus", "veca_base", "veca_large")
LITTLE = {"layers": 3, "width": 32, "heads": 2, "patch_size": 8, "budgets": (2, 4, 8)}


def little(**kwargs: Any) -> Any:
    torch.manual_seed(0)
    return timm.create_model("veca_tiny", **{**LITTLE, **kwargs}).eval()


def images(batch: int = 2, channels: int = 3) -> torch.Tensor:
    return torch.randn(batch, channels, 32, 48)


def test_all_sizes_are_registered() -> None:
    assert sorted(timm.list_models("veca_*")) == sorted(SIZES)
    assert timm.list_models("veca_*", pretrained=True) == []  # none on the hub


def test_pretrained_features_are_those_of_veca() -> None:
    model = timm.create_model("veca_tiny", pretrained=True, num_classes=0).eval()
    pixels = torch.randn(1, 3, 64, 96)
    expected = veca.load("veca-tiny")(pixels)
    torch.testing.assert_close(model(pixels), expected.image, atol=1e-5, rtol=1e-5)
    tokens = torch.cat((expected.cores, expected.patches), dim=1)
    torch.testing.assert_close(model.forward_features(pixels), tokens, atol=1e-5, rtol=1e-5)


def test_a_pretrained_backbone_gets_a_new_head() -> None:
    model = timm.create_model("veca_tiny", pretrained=True, num_classes=10).eval()
    assert model(torch.randn(1, 3, 32, 32)).shape == (1, 10)
    gray = timm.create_model("veca_tiny", pretrained=True, num_classes=0, in_chans=1).eval()
    assert gray(torch.randn(1, 1, 32, 32)).shape == (1, 192)


def test_the_forward_pass_gives_logits_without_nan() -> None:
    logits = little(num_classes=7)(images())
    assert logits.shape == (2, 7)
    assert logits.isfinite().all()


def test_every_parameter_that_a_call_uses_gets_a_gradient() -> None:
    model = little(num_classes=7).train()
    model(images()).mean().backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_classifier_and_pooling_are_reset() -> None:
    model = little(num_classes=7)
    assert model.get_classifier().out_features == 7
    tokens = model.forward_features(images())
    assert tokens.shape == (2, 8 + 24, 32)
    assert model.forward_head(tokens, pre_logits=True).shape == (2, 32)
    model.reset_classifier(0)
    pixels = images()
    assert torch.equal(model(pixels), model.forward_features(pixels)[:, 0])
    model.reset_classifier(0, "avg")
    assert torch.equal(model(pixels), model.forward_features(pixels)[:, 8:].mean(1))
    model.reset_classifier(0, "")
    assert model(pixels).shape == (2, 32, 32)
    with pytest.raises(ValueError, match="global_pool='map' is unknown"):
        model.reset_classifier(0, "map")


def test_features_only_gives_maps_of_the_last_layers() -> None:
    pixels = images()
    model, whole = little(features_only=True), little(num_classes=0)
    maps = model(pixels)
    assert [tuple(item.shape) for item in maps] == [(2, 32, 4, 6)] * 3
    expected = whole.forward_intermediates(pixels, 3, intermediates_only=True)
    for mine, theirs in zip(maps, expected, strict=True):
        torch.testing.assert_close(mine, theirs)
    first = little(features_only=True, out_indices=(0,))
    torch.testing.assert_close(first(pixels)[0], expected[0])
    assert model.feature_info.channels() == [32, 32, 32]
    assert model.feature_info.reduction() == [8, 8, 8]


def test_intermediates_come_with_the_final_tokens() -> None:
    model, pixels = little(num_classes=0), images()
    final, maps = model.forward_intermediates(pixels, [1])
    torch.testing.assert_close(final, model.forward_features(pixels))
    assert maps[0].shape == (2, 32, 4, 6)


def test_a_budget_is_chosen_when_the_model_is_made_or_later() -> None:
    model = little(num_classes=0, budget=2)
    assert model.num_prefix_tokens == 2
    model.budget = 4
    assert model.forward_features(images()).shape == (2, 4 + 24, 32)


def test_the_pretrained_cfg_says_how_pictures_are_prepared() -> None:
    model = little()
    config = resolve_data_config(model.pretrained_cfg)
    assert (config["input_size"], config["interpolation"]) == ((3, 256, 256), "bicubic")
    assert config["mean"] == MEAN
    assert create_transform(**config) is not None
    assert model.pretrained_cfg["classifier"] == "head"
