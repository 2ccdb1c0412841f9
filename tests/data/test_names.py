"""A picture has one name, however it is called."""

from pathlib import Path

import pytest

from veca.data.listing import absolute, key, member_name, possible_names, split_member


def test_a_file_is_called_by_its_absolute_path_with_links_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    assert absolute("real/../link/a.jpg") == str(tmp_path / "link" / "a.jpg")


def test_a_home_folder_is_spelled_out() -> None:
    assert absolute("~/a.jpg") == str(Path.home() / "a.jpg")


@pytest.mark.parametrize("shard", ["photos.tar", "PHOTOS.TAR"])
def test_the_name_of_a_member_comes_apart_again(
    shard: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert split_member(f"{shard}#./a/../b#c.jpg") == (str(tmp_path / shard), "./a/../b#c.jpg")


def test_a_file_is_no_member() -> None:
    assert split_member("a#b.jpg") is None


def test_a_word_can_mean_a_file_and_a_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shard = str(tmp_path / "s.tar")
    assert member_name(shard, "./a.jpg") in possible_names("s.tar#./a.jpg")
    assert possible_names("a.jpg") == [str(tmp_path / "a.jpg")]


def test_keys_are_64_bits_that_tell_names_apart() -> None:
    assert len({key(f"{number}.jpg") for number in range(10_000)}) == 10_000
    assert 0 <= key("a") == key(b"a") < 2**64
