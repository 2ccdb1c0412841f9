"""Feature colours compare across maps."""

import torch

from veca.analysis.visualize import common_basis, feature_colours


def maps(count: int = 3) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(16, 4, 6) for _ in range(count)]


def test_equal_features_have_equal_colours_in_every_map() -> None:
    first, second, third = maps()
    second[:, 2, 3] = first[:, 0, 1]
    basis = common_basis([first, second, third])
    assert torch.equal(feature_colours(first, basis)[0, 1], feature_colours(second, basis)[2, 3])


def test_the_length_of_a_feature_does_not_change_its_colour() -> None:
    basis = common_basis(maps())
    one = maps()[0]
    assert torch.equal(feature_colours(one, basis), feature_colours(one * 5, basis))


def test_the_basis_is_that_of_principal_components() -> None:
    patches = torch.cat([item.flatten(1).mT for item in maps()]).double()
    patches = patches / patches.norm(dim=1, keepdim=True)
    _, _, right = torch.linalg.svd(patches - patches.mean(0), full_matrices=False)
    overlap = (right[:3] @ common_basis(maps()).directions).abs()
    torch.testing.assert_close(overlap, torch.eye(3, dtype=torch.float64), atol=1e-9, rtol=0)


def test_two_regions_get_two_colours() -> None:
    halves = torch.zeros(8, 4, 4)
    halves[0, :, :2], halves[1, :, 2:] = 1.0, 1.0
    colours = feature_colours(halves, common_basis([halves])).long()
    assert (colours[:, :2] == colours[0, 0]).all()
    assert (colours[0, 0] - colours[0, 3]).abs().max() == 255


def test_features_that_do_not_differ_still_have_a_colour() -> None:
    flat = torch.ones(2, 3, 3)
    assert feature_colours(flat, common_basis([flat])).shape == (3, 3, 3)
