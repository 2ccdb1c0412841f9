"""The door that all models of probes share."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from veca.probe.models import Frozen, FrozenModel, ModelFacts, ProbeModelError
from veca.probe.rows import Setting

CPU = torch.device("cpu")
WHOLE = Setting()


class Mixed(FrozenModel):
    """One matrix on every patch, and attention between patches; computes in double precision."""

    def __init__(self, stride: int = 4) -> None:
        facts = ModelFacts(
            name="mixed",
            kind="teacher",
            digest=None,
            licence="mit",
            trained=True,
            stride=stride,
            image_width=6,
            patch_width=6,
            elastic=False,
            default_resolution=8,
        )
        super().__init__(facts, CPU)
        self.weight = torch.rand(3 * stride**2, 6, dtype=torch.float64, requires_grad=True)

    def look(self, images: Tensor, grid: tuple[int, int], setting: Setting) -> Frozen:
        del setting
        squares = torch.nn.functional.pixel_unshuffle(images.double(), self.stride)
        tokens = squares.flatten(2).transpose(1, 2) @ self.weight
        tokens = torch.nn.functional.scaled_dot_product_attention(tokens, tokens, tokens)
        return Frozen(tokens.mean(dim=1), tokens.transpose(1, 2).unflatten(2, grid))


def images(height: int = 8, width: int = 12) -> Tensor:
    return torch.randint(0, 256, (2, 3, height, width), dtype=torch.uint8)


def test_features_are_maps_in_single_precision_without_gradients() -> None:
    found = Mixed().observe(images(), WHOLE)
    assert found.image.shape == (2, 6)
    assert found.patches.shape == (2, 6, 2, 3)
    assert found.patches.is_contiguous()
    assert not found.patches.is_inference()  # a head may be trained on them
    for tensor in found:
        assert tensor.dtype == torch.float32
        assert not tensor.requires_grad


@pytest.mark.parametrize("sides", [(8, 10), (7, 8)])
def test_sides_that_are_no_multiples_of_the_stride_are_refused_with_one_that_is(
    sides: tuple[int, int],
) -> None:
    with pytest.raises(ProbeModelError, match=r"stride 4; use (8|4) in place of (10|7)\."):
        Mixed().observe(images(*sides), WHOLE)


@given(pixels=st.integers(1, 2000), stride=st.integers(1, 64))
def test_the_fitted_side_is_the_greatest_multiple_that_is_not_larger(
    pixels: int, stride: int
) -> None:
    side = Mixed(stride=1)
    side.stride = stride
    found = side.round_down_to_patch(pixels)
    assert found % stride == 0
    assert found == stride if pixels < stride else pixels - stride < found <= pixels


def test_gflops_count_two_for_each_multiplication_and_addition() -> None:
    patches, width, pixels = 6, 6, 48
    by_hand = 2 * patches * pixels * width + 2 * 2 * patches**2 * width
    assert Mixed().gflops((8, 12), WHOLE) == pytest.approx(by_hand / 1e9)


def test_a_model_without_a_choice_has_one_setting_whatever_a_run_asks_for() -> None:
    assert Mixed().settings(None, None) == (WHOLE,)
    assert Mixed().settings([8, 64], [0.5]) == (WHOLE,)


def test_what_a_report_says_is_plain() -> None:
    facts = json.loads(json.dumps(Mixed().describe()))
    assert facts["name"] == "mixed"
    assert facts["kind"] == "teacher"
    assert facts["stride"] == 4


def test_a_model_that_does_not_say_how_it_looks_is_unfinished() -> None:
    model = FrozenModel(Mixed().facts, CPU)
    with pytest.raises(NotImplementedError, match="FrozenModel does not define look"):
        model.observe(images(), WHOLE)
