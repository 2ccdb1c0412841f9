"""Feature colors compare across maps."""

import torch

from veca.analysis.visualize import common_basis, pca_colors


def maps(count: int = 3) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(16, 4, 6) for _ in range(count)]


def test_equal_features_have_equal_colors_in_every_map() -> None:
    first, second, third = maps()
    second[:, 2, 3] = first[:, 0, 1]
    basis = common_basis([first, second, third])
    assert torch.equal(pca_colors(first, basis)[0, 1], pca_colors(second, basis)[2, 3])


def test_the_length_of_a_feature_does_not_change_its_color() -> None:
    basis = common_basis(maps())
    one = maps()[0]
    assert torch.equal(pca_colors(one, basis), pca_colors(one * 5, basis))


def test_the_basis_is_that_of_principal_components() -> None:
    patches = torch.cat([item.flatten(1).mT for item in maps()]).double()
    patches = patches / patches.norm(dim=1, keepdim=True)
    _, _, right = torch.linalg.svd(patches - patches.mean(0), full_matrices=False)
    overlap = (right[:3] @ common_basis(maps()).directions).abs()
    torch.testing.assert_close(overlap, torch.eye(3, dtype=torch.float64), atol=1e-9, rtol=0)


def test_two_regions_get_two_colors() -> None:
    halves = torch.zeros(8, 4, 4)
    halves[0, :, :2], halves[1, :, 2:] = 1.0, 1.0
    colors = pca_colors(halves, common_basis([halves])).long()
    assert (colors[:, :2] == colors[0, 0]).all()
    assert (colors[0, 0] - colors[0, 3]).abs().max() == 255


def test_features_that_do_not_differ_still_have_a_color() -> None:
    flat = torch.ones(2, 3, 3)
    assert pca_colors(flat, common_basis([flat])).shape == (3, 3, 3)
