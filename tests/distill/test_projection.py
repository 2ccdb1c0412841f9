"""Principal components against a singular value decomposition."""

import numpy as np
import pytest
import torch

from veca.distill.projection import Projection


def features(rows: int = 200, width: int = 12) -> torch.Tensor:
    """Correlated vectors, far from 0, whose channels vary unequally."""
    draw = torch.Generator().manual_seed(1)
    mixed = torch.randn(rows, width, generator=draw) * torch.linspace(4, 0.1, width)
    return mixed @ torch.randn(width, width, generator=draw) + 50


def test_components_are_those_of_a_singular_value_decomposition() -> None:
    rows = features().double().numpy()
    projection = Projection.fit([features()], 5)

    values, directions = np.linalg.svd(rows - rows.mean(0), full_matrices=False)[1:]
    np.testing.assert_allclose(projection.center.numpy(), rows.mean(0), rtol=1e-6)
    agreement = np.abs((projection.components.numpy() * directions[:5]).sum(1))
    np.testing.assert_allclose(agreement, 1, atol=1e-5)
    share = (values[:5] ** 2).sum() / (values**2).sum()
    assert float(projection.explained) == pytest.approx(share, abs=1e-6)


def test_components_are_orthonormal_and_the_first_vary_most() -> None:
    projection = Projection.fit([features()], 5)

    torch.testing.assert_close(projection.components @ projection.components.T, torch.eye(5))
    spread = projection(features()[None])[0].var(0)
    assert torch.equal(spread.argsort(descending=True), torch.arange(5))


def test_projecting_takes_the_center_off_and_turns() -> None:
    projection = Projection.fit([features()], 5)
    patches = features(6)[None].reshape(2, 3, 12)

    wanted = [
        [
            [float(row @ (patch - projection.center)) for row in projection.components]
            for patch in image
        ]
        for image in patches
    ]
    torch.testing.assert_close(projection(patches), torch.tensor(wanted), rtol=1e-4, atol=1e-4)


def test_all_components_keep_every_distance() -> None:
    rows = features()
    projection = Projection.fit([rows], 12)

    torch.testing.assert_close(torch.pdist(projection(rows[None])[0]), torch.pdist(rows))
    assert float(projection.explained) == pytest.approx(1)


def test_features_may_come_in_parts_of_any_shape() -> None:
    rows = features()
    whole = Projection.fit([rows], 4)
    parts = Projection.fit([rows[:7], rows[7:67].reshape(4, 15, 12), rows[67:]], 4)

    for one, other in zip(whole.buffers(), parts.buffers(), strict=True):
        torch.testing.assert_close(one, other)


def test_equal_features_give_equal_bits_and_no_component_points_backwards() -> None:
    first, second = (Projection.fit([features()], 8) for _ in range(2))

    assert torch.equal(first.components, second.components)
    largest = first.components.gather(1, first.components.abs().argmax(1, keepdim=True))
    assert (largest > 0).all()


def test_a_large_mean_does_not_drown_a_small_variance() -> None:
    draw = torch.Generator().manual_seed(0)
    rows = torch.zeros(500, 3, dtype=torch.float64) + 1e6
    rows[:, 1] += 1e-3 * torch.randn(500, generator=draw, dtype=torch.float64)
    projection = Projection.fit([rows], 1)

    torch.testing.assert_close(
        projection.components, torch.tensor([[0.0, 1.0, 0.0]]), atol=1e-4, rtol=0
    )
    assert float(projection.explained) == pytest.approx(1, abs=1e-4)


def test_features_that_do_not_vary_are_held_whole() -> None:
    assert float(Projection.fit([torch.ones(4, 3)], 1).explained) == 1


def test_it_is_computed_in_single_precision_within_autocast() -> None:
    projection = Projection.fit([features()], 5)
    patches = features(6)[None]

    with torch.autocast("cpu", torch.bfloat16):
        found = projection(patches)
    assert torch.equal(found, projection(patches))


def test_it_tells_how_much_of_the_variance_is_kept() -> None:
    projection = Projection(torch.zeros(1280), torch.zeros(256, 1280), torch.tensor(0.9312))
    assert projection.describe() == "256 of 1,280 channels hold 93.1 % of the variance"
    assert projection.channels == 256


@pytest.mark.parametrize("channels", [0, 13])
def test_components_that_do_not_exist_are_refused_with_the_range(channels: int) -> None:
    with pytest.raises(ValueError, match=f"^{channels} principal components of 12.*use 1 to 12"):
        Projection.fit([features()], channels)


@pytest.mark.parametrize("parts", [[], [torch.zeros(1, 3)]])
def test_too_few_vectors_are_refused(parts: list[torch.Tensor]) -> None:
    with pytest.raises(ValueError, match=r"vectors have no principal components; give 2 or more"):
        Projection.fit(parts, 1)
