"""From a student's width to a teacher's."""

import pytest
import torch
from torch import nn

from veca.backbone.model import Features
from veca.distill.adaptors import Adaptor, AdaptorKind


def features(width: int = 8) -> Features:
    """Features of two images with three cores and four patches."""
    return Features(
        torch.randn(2, 3, width), torch.randn(2, 4, width), torch.zeros(2, 3, 2), (2, 2)
    )


def linear_layers(adaptor: nn.Module) -> int:
    """How many linear layers there are."""
    return sum(isinstance(module, nn.Linear) for module in adaptor.modules())


@pytest.mark.parametrize(
    ("kind", "widths", "layers"),
    [
        ("auto", (8, 8), 0),
        ("auto", (8, 5), 1),
        ("auto", (6, 5), 2),
        ("none", (8, 8), 0),
        ("linear", (8, 8), 2),
        ("two-layer", (5, 8), 4),
    ],
)
def test_an_adaptor_answers_in_the_teachers_widths_with_as_many_layers_as_asked_for(
    kind: AdaptorKind, widths: tuple[int, int], layers: int
) -> None:
    adaptor = Adaptor(8, *widths, kind)
    image, patches = adaptor(features())
    assert image.shape == (2, widths[0])
    assert patches.shape == (2, 4, widths[1])
    assert linear_layers(adaptor) == layers


def test_without_layers_the_first_core_and_the_patches_pass_as_they_are() -> None:
    given = features()
    image, patches = Adaptor(8, 8, 8, "none")(given)
    assert torch.equal(image, given.cores[:, 0])
    assert patches is given.patches


def test_image_and_patches_have_weights_of_their_own() -> None:
    adaptor = Adaptor(8, 5, 5, "linear")
    image, _ = adaptor(features())
    image.sum().backward()
    assert all(parameter.grad is None for parameter in adaptor.patches.parameters())


def test_new_layers_are_as_small_as_the_backbones() -> None:
    adaptor = Adaptor(64, 48, 80, "two-layer")
    weights = [m.weight.detach() for m in adaptor.modules() if isinstance(m, nn.Linear)]
    biases = [m.bias for m in adaptor.modules() if isinstance(m, nn.Linear)]
    assert all(float(weight.std()) == pytest.approx(0.02, rel=0.1) for weight in weights)
    assert not any(bias.any() for bias in biases)


def test_two_layers_can_bend_what_one_layer_cannot() -> None:
    given = features()
    opposite = given._replace(cores=-given.cores)
    for adaptor, straight in (
        (Adaptor(8, 5, 5, "linear"), True),
        (Adaptor(8, 5, 5, "two-layer"), False),
    ):
        nn.init.normal_(next(adaptor.image.parameters()))
        found = torch.allclose(adaptor(given)[0], -adaptor(opposite)[0], atol=1e-6)
        assert found is straight


def test_no_adaptor_between_different_widths_is_refused_with_those_that_fit() -> None:
    with pytest.raises(ValueError, match=r"width 8 .* width 5 .*'auto', 'linear' or 'two-layer'"):
        Adaptor(8, 8, 5, "none")
