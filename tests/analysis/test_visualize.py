"""Features and cores as arrays to look at."""

import sys
import xml.etree.ElementTree as ET

import pytest
import torch

from veca.analysis.visualize import (
    cluster_patches,
    common_basis,
    core_colors,
    core_segments,
    cosine_map,
    distinct_cores,
    heat,
    paths_svg,
    pca_colors,
    regions,
    umap_colors,
)
from veca.runtime import VecaError


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


def test_cosine_maps_are_the_cosines_one_by_one() -> None:
    torch.manual_seed(0)
    patch_map, feature = torch.randn(6, 3, 4), torch.randn(6)
    found = cosine_map(patch_map, feature)
    for row in range(3):
        for column in range(4):
            expected = torch.cosine_similarity(patch_map[:, row, column], feature, dim=0)
            torch.testing.assert_close(found[row, column], expected)
    assert cosine_map(patch_map, patch_map[:, 1, 2])[1, 2] == pytest.approx(1)


def test_a_patch_belongs_to_the_core_that_it_reads_most() -> None:
    patch_maps = torch.tensor([[[0.2, 0.5]], [[0.7, 0.1]], [[0.1, 0.4]]])
    assert core_segments(patch_maps).tolist() == [[1, 0]]


def test_clusters_are_found_in_all_maps_at_once_and_named_by_size() -> None:
    torch.manual_seed(0)
    kinds = torch.eye(3, 8)
    truth = [torch.tensor([[0, 0, 1], [0, 0, 1]]), torch.tensor([[2, 0], [1, 0], [1, 0]])]
    noisy = [
        ((kinds[labels] + 0.05 * torch.randn(*labels.shape, 8)) * 3).permute(2, 0, 1)
        for labels in truth
    ]
    for found, labels in zip(cluster_patches(noisy, 3), truth, strict=True):
        assert torch.equal(found, labels)
    again = cluster_patches(noisy, 3)
    assert all(torch.equal(a, b) for a, b in zip(again, cluster_patches(noisy, 3), strict=True))


def test_there_are_no_more_clusters_than_patches() -> None:
    (found,) = cluster_patches([torch.randn(4, 1, 2)], 5)
    assert sorted(found.flatten().tolist()) == [0, 1]


def test_the_most_different_cores_read_different_places() -> None:
    left, right, top = torch.zeros(3, 4, 4)
    left[:, :2], right[:, 2:], top[:2] = 0.1, 0.2, 0.4
    core_maps = torch.stack((left, 0.5 * left, top, right))
    assert distinct_cores(core_maps, 2) == [0, 3]
    assert distinct_cores(core_maps, 3) == [0, 3, 2]
    assert distinct_cores(core_maps, 9) == [0, 3, 2, 1]


def test_umap_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(VecaError, match=r"umap-learn.*pip install 'veca\[figures\]'.*'pca'"):
        umap_colors(maps())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of numba and of umap
def test_umap_gives_equal_features_equal_colors_and_every_map_its_shape() -> None:
    pytest.importorskip("umap", reason="umap-learn is not installed (extra figures)")
    halves = torch.randn(8, 6, 6) * 0.1
    halves[0, :, :3], halves[1, :, 3:] = 1.0, 1.0
    first, second = umap_colors([halves, halves[:, :2]])
    assert (first.shape, second.shape) == ((6, 6, 3), (2, 6, 3))
    colors = first.float()
    apart = (colors[:, :3].mean((0, 1)) - colors[:, 3:].mean((0, 1))).norm()
    assert apart > colors[:, :3].flatten(0, 1).std(0).norm()
    assert torch.equal(umap_colors([halves, halves[:, :2]])[0], first)
