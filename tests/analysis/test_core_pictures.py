"""Pictures of what cores do."""

import xml.etree.ElementTree as ET

import torch

from veca.analysis.visualize import core_colors, heat, paths_svg, regions


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
