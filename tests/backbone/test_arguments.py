"""What a caller can get wrong, and the messages."""

from typing import Any

import numpy as np
import pytest
import torch

from veca.backbone.config import BackboneConfig
from veca.backbone.model import (
    VECA,
    check_budget,
    check_ffn,
    check_images,
    patch_grid,
)

CONFIG = BackboneConfig(width=192, heads=3, ffn_shares=(0.5, 1.0))
MODEL = VECA(BackboneConfig(layers=2, width=16, heads=1))
IMAGES = torch.zeros(1, 3, 16, 16)


@pytest.mark.parametrize("budget", [0, -1, 65])
def test_a_budget_beyond_the_bank_is_refused_with_the_range_that_works(budget: int) -> None:
    with pytest.raises(ValueError, match=r"outside 1\.\.64"):
        check_budget(CONFIG, budget)


@pytest.mark.compiled  # without the shape hook, which would refuse these first
@pytest.mark.parametrize("budget", [8.0, "8", True])
def test_a_budget_that_is_no_whole_number_is_refused(budget: Any) -> None:
    with pytest.raises(ValueError, match=r"outside 1\.\.64"):
        check_budget(CONFIG, budget)


def test_no_budget_means_every_core() -> None:
    assert check_budget(CONFIG, None) == 64


def test_a_full_attention_model_takes_no_budget() -> None:
    full = BackboneConfig(attention="full", prefix_tokens=5)
    assert check_budget(full, None) == 5
    with pytest.raises(ValueError, match="has no cores; leave it out"):
        check_budget(full, 1)


@pytest.mark.parametrize("share", [0.0, -0.5, 1.01])
def test_a_share_outside_its_range_is_refused_with_the_shares_of_the_model(share: float) -> None:
    with pytest.raises(ValueError, match=r"outside \(0, 1\]; .* 0.5, 1.0"):
        check_ffn(CONFIG, share)


def test_a_model_with_whole_feedforward_parts_says_how_to_get_nested_ones() -> None:
    with pytest.raises(ValueError, match=r"ffn_shares=\(0.25, 0.5, 1.0\)"):
        check_ffn(BackboneConfig(), 0.5)
    assert check_ffn(BackboneConfig(), 1.0) == 2048


@pytest.mark.parametrize(
    ("side", "below", "above"), [(70, 64, 80), (15, 16, 32), (1, 16, 32), (0, 16, 32), (31, 16, 32)]
)
def test_a_size_that_does_not_fit_is_answered_with_the_two_nearest(
    side: int, below: int, above: int
) -> None:
    for name, height, width in (("height", side, 32), ("width", 32, side)):
        words = rf"{name}={side} .* image to {below} or {above}"
        with pytest.raises(ValueError, match=words):
            patch_grid(CONFIG, height, width)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 4, 32, 32), (32, 32)])
def test_images_of_another_shape_are_refused_with_the_shape_needed(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"\(B, 3, height, width\)"):
        check_images(CONFIG, torch.zeros(shape))


def test_images_of_whole_numbers_are_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"torch.uint8, .* veca.preprocess"):
        check_images(CONFIG, torch.zeros(1, 3, 32, 32, dtype=torch.uint8))


@pytest.mark.compiled  # without the shape hook, which would refuse these first
def test_whole_numbers_of_other_libraries_are_taken() -> None:
    assert check_budget(CONFIG, np.int64(8)) == 8  # type: ignore[arg-type]
    assert len(MODEL.intermediates(IMAGES, [np.int32(1)])) == 1  # type: ignore[list-item]


@pytest.mark.compiled
def test_other_types_are_refused() -> None:
    with pytest.raises(ValueError, match=r"images is a ndarray, .* veca.preprocess"):
        check_images(CONFIG, np.zeros((1, 3, 32, 32)))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"outside \(0, 1\]"):
        check_ffn(CONFIG, "a")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'bogus' is unknown; use 'auto', 'plain', 'folded'"):
        MODEL.set_attention_form("bogus")  # type: ignore[arg-type]


@pytest.mark.parametrize("layer", [-3, 2])
def test_a_layer_that_is_not_there_is_refused_with_the_layers_that_are(layer: int) -> None:
    for call in (MODEL.intermediates, MODEL.attention_maps, MODEL.core_maps):
        with pytest.raises(ValueError, match=rf"layer {layer} is outside -2\.\.1; count"):
            call(IMAGES, layer)
    with pytest.raises(ValueError, match=r"outside -2\.\.1"):
        MODEL.intermediates(IMAGES, [0, layer])
