"""Features and cores as arrays to look at."""

import xml.etree.ElementTree as ET

import torch

from veca.analysis.visualize import common_basis, core_colors, heat, paths_svg, pca_colors, regions


def test_a_patch_has_the_color_of_the_core_that_reads_it_most() -> None:
    maps = torch.full((3, 2, 3), 0.01)
    maps[1, 0, 2] = maps[2, 1, 0] = 0.5
    colors = core_colors(torch.tensor([[0.0, 0.0], [0.9, 0.0], [0.0, 0.9]]))
    picture = regions(maps, colors)
    assert torch.equal(picture[0, 2, :3], colors[1])
    assert torch.equal(picture[1, 0, :3], colors[2])
    assert picture[0, 2, 3] > picture[0, 0, 3]  # clear readings cover more


def test_a_core_that_reads_much_everywhere_does_not_win_everywhere() -> None:
    maps = torch.stack((torch.full((2, 2), 0.2), torch.tensor([[0.08, 0.0], [0.0, 0.0]])))
    colors = core_colors(torch.tensor([[0.5, 0.0], [-0.5, 0.0]]))
    picture = regions(maps, colors)
    assert torch.equal(picture[0, 0, :3], colors[1])
    assert torch.equal(picture[1, 1, :3], colors[0])


def test_colors_tell_cores_apart_and_are_the_same_at_every_budget() -> None:
    torch.manual_seed(0)
    starts = torch.rand(16, 2) * 2 - 1
    assert torch.equal(core_colors(starts)[:8], core_colors(starts[:8]))
    assert len({tuple(color) for color in core_colors(starts).tolist()}) == 16


def test_the_veil_is_thin_where_a_core_reads_much() -> None:
    veil = heat(torch.linspace(0, 1, 12).reshape(3, 4))
    assert veil[2, 3, 3] < veil[0, 0, 3]
    assert veil.shape == (3, 4, 4)


def test_paths_run_from_ring_to_disc_in_pixels() -> None:
    paths = torch.tensor([[[-1.0, -1.0]], [[0.0, 0.0]], [[0.5, 1.0]]])
    root = ET.fromstring(paths_svg(paths, core_colors(paths[0]), (200, 100)))
    line = root.find("polyline")
    assert line is not None
    assert line.attrib["points"] == "0.0,0.0 100.0,50.0 150.0,100.0"
    start, end = root.findall("circle")
    assert (start.attrib["cx"], start.attrib["cy"]) == ("0.0", "0.0")
    assert (end.attrib["cx"], end.attrib["cy"]) == ("150.0", "100.0")


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
