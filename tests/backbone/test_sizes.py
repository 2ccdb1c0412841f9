"""The named sizes are the paper's, to the parameter."""

import pytest
import torch

import veca
from veca.backbone.config import SIZES


@pytest.mark.parametrize(
    ("size", "parameters"),
    [
        ("tiny", 5_526_881),
        ("small", 21_628_961),
        ("small-plus", 28_719_137),
        ("base", 85_725_089),
        ("large", 303_195_301),
    ],
)
def test_a_size_has_the_parameters_that_the_paper_states(size: str, parameters: int) -> None:
    with torch.device("meta"):
        model = veca.build(size)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert model.cost(256, 256).parameters == parameters


def test_the_table_of_sizes_cannot_be_changed_by_accident() -> None:
    with pytest.raises(TypeError):
        SIZES["huge"] = SIZES["large"]  # type: ignore[index]
