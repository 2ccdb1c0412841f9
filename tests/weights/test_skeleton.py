"""Tensors are held against a model without memory, and then put into it."""

import time

import pytest
import torch
from torch import Tensor

from tests.weights.models import same_weights, trained_model
from veca.backbone.config import BackboneConfig
from veca.weights.format import WeightsError, assemble, check_fit, check_plausible, expected_shapes

MODEL = trained_model(layers=3)
SHAPES = {name: tuple(tensor.shape) for name, tensor in MODEL.state_dict().items()}


def copies() -> dict[str, Tensor]:
    """The weights of the model, copied."""
    return {name: tensor.clone() for name, tensor in MODEL.state_dict().items()}


@pytest.mark.parametrize("attention", ["core-periphery", "full"])
def test_the_tensors_of_a_model_fit_its_configuration(attention: str) -> None:
    model = trained_model(attention=attention)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    assert expected_shapes(model.config) == shapes
    check_fit(model.config, shapes, "here")


def test_missing_and_extra_tensors_are_listed() -> None:
    shapes = {**SHAPES, "head.weight": (3, 4)}
    del shapes["blocks.0.attention.key.bias"]
    words = r"lacks 'blocks.0.attention.key.bias' and has 'head.weight' left over"
    with pytest.raises(WeightsError, match=words):
        check_fit(MODEL.config, shapes, "here")


def test_long_lists_are_shortened() -> None:
    shapes = {name: shape for name, shape in SHAPES.items() if not name.startswith("blocks.1")}
    with pytest.raises(WeightsError, match="and 11 more") as caught:
        check_fit(MODEL.config, shapes, "here")
    assert len(str(caught.value)) < 700


def test_wrong_shapes_are_listed_beside_the_right_ones() -> None:
    shapes = {**SHAPES, "final_norm.bias": (33,)}
    with pytest.raises(WeightsError, match=r"final_norm.bias \(33,\) instead of \(32,\)"):
        check_fit(MODEL.config, shapes, "here")


@pytest.mark.parametrize(
    "absurd",
    [
        BackboneConfig(layers=10**9, width=32, heads=2),
        BackboneConfig(layers=2, width=10**9, heads=5),
        BackboneConfig(layers=2, width=32, heads=2, patch_size=10**9),
        BackboneConfig(layers=2, width=32, heads=2, in_channels=10**9),
        BackboneConfig(layers=2, width=32, heads=2, ffn_ratio=1e9),
        BackboneConfig(layers=2, width=32, heads=2, budgets=(10**9,)),
        BackboneConfig(layers=2, width=32, heads=2, budgets=tuple(range(1, 100_000))),
        BackboneConfig(layers=2, width=32, heads=2, attention="full", prefix_tokens=10**9),
    ],
)
def test_an_absurd_configuration_is_refused_before_anything_is_built(
    absurd: BackboneConfig,
) -> None:
    start = time.perf_counter()
    with pytest.raises(WeightsError, match="too few for its configuration") as caught:
        check_fit(absurd, SHAPES, "here")
    assert time.perf_counter() - start < 1
    assert len(str(caught.value)) < 500
    with pytest.raises(WeightsError):
        check_plausible(absurd, SHAPES, "here")


def test_an_assembled_model_has_the_tensors_and_draws_no_random_numbers() -> None:
    before = torch.get_rng_state()
    model = assemble(MODEL.config, copies())
    assert torch.equal(torch.get_rng_state(), before)
    assert same_weights(model, MODEL)
    assert not model.training


def test_parameters_own_their_memory_and_can_be_trained() -> None:
    model = assemble(MODEL.config, copies())
    for parameter in model.parameters():
        assert parameter.requires_grad
        assert not parameter.is_meta
        assert parameter.untyped_storage().nbytes() == parameter.numel() * parameter.element_size()
    memory = [parameter.untyped_storage().data_ptr() for parameter in model.parameters()]
    assert len(set(memory)) == len(memory)
