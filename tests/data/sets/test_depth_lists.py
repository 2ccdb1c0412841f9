"""Lists of pictures and depth maps are read under any of their names."""

from pathlib import Path

import pytest

from tests.data.sets.dense_layouts import write_lines, write_picture
from veca.data.sets.dataset import DatasetChecks, DatasetError
from veca.data.sets.depth import first_place, read_depth_list


def test_lines_give_pictures_and_depth_and_count_those_without(tmp_path: Path) -> None:
    write_lines(
        tmp_path / "b.txt",
        ["/x/rgb.jpg /x/depth.png 518.8579", "", "y/1.png None 721.5377", "z/2.png z/d.png 721.5"],
    )
    found = read_depth_list(tmp_path, ("a.txt", "b.txt"), DatasetChecks("some"))
    assert found.name == "b.txt"
    assert found.pairs == [("x/rgb.jpg", "x/depth.png"), ("z/2.png", "z/d.png")]
    assert found.without_depth == 1


def test_a_list_that_is_not_there_is_named_in_all_ways(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"none of the lists a\.txt, b\.txt is in"):
        read_depth_list(tmp_path, ("a.txt", "b.txt"), DatasetChecks("some"))


def test_a_line_of_one_column_is_an_error(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.txt", ["x/rgb.jpg"])
    with pytest.raises(DatasetError, match=r"x/rgb\.jpg"):
        read_depth_list(tmp_path, ("a.txt",), DatasetChecks("some"))


def test_a_name_is_found_in_the_first_place_that_has_it(tmp_path: Path) -> None:
    write_picture(tmp_path / "two/x.png")
    write_picture(tmp_path / "three/x.png")
    assert first_place(tmp_path, ("", "two", "three"), "x.png") == "two/x.png"
    assert first_place(tmp_path, ("", "two"), "y.png") == "y.png"
