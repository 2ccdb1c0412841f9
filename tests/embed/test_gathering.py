"""Features of a window come back into the order of the inputs, in the precision asked for."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data.pictures import write_pictures
from veca.backbone.features import Features
from veca.data.listing import list_images
from veca.embed.config import EmbedConfig
from veca.embed.decoding import Decoded, Group
from veca.embed.errors import CollectionError
from veca.embed.gathering import Gathering
from veca.embed.windows import Window

WIDTH = 4


def gathering(folder: Path, config: EmbedConfig, batches: list[list[int]]) -> Gathering:
    """A window over six pictures, of which the last is known to be unreadable."""
    table = list_images(write_pictures(folder, 6)).table
    window = Window(0, np.arange(6), {5: "is empty"}, [np.array(batch) for batch in batches])
    return Gathering(window, table, config, WIDTH)


def decoded(places: list[int], skipped: dict[int, str] | None = None) -> Decoded:
    images = torch.zeros(len(places), 3, 32, 48)
    originals = np.array([[320 + place, 480] for place in places])
    return Decoded(0, [Group(np.array(places), images, originals)], skipped or {})


def features(places: list[int], scale: float = 1.0) -> Features:
    """Features that tell which picture they belong to."""
    numbers = scale * torch.tensor(places, dtype=torch.float32)
    cores = numbers[:, None, None].expand(-1, 2, WIDTH)
    patches = (numbers[:, None] + torch.arange(6) / 8)[:, :, None].expand(-1, -1, WIDTH)
    return Features(cores, patches, torch.zeros(len(places), 2, 2), (2, 3))


def test_features_take_the_places_of_their_pictures(tmp_path: Path) -> None:
    found = gathering(tmp_path, EmbedConfig(patches=True), [[1, 4], [0, 2, 3]])
    assert found.add(decoded([1, 4]), [features([1, 4])]) == 2
    assert not found.is_full()
    assert found.add(decoded([0, 3], {2: "is cut short"}), [features([0, 3])]) == 4
    assert found.is_full()

    content = found.content(shard=7, first=100)
    assert content.vectors[:, 0].tolist() == [0, 1, 3, 4]
    assert content.vectors.dtype == content.maps[0].dtype == np.float16
    assert [entry.index for entry in content.entries] == [100, 101, 102, 103]
    assert [entry.row for entry in content.entries] == [0, 1, 2, 3]
    third = content.entries[2]
    assert (third.shard, third.grid, third.height, third.width) == (7, (2, 3), 323, 480)
    assert third.path == str(tmp_path / "0003.png")
    assert content.maps[2][0].tolist() == [[3, 3.125, 3.25], [3.375, 3.5, 3.625]]
    assert [(Path(item.path).name, item.reason) for item in content.skipped] == [
        ("0002.png", "is cut short"), ("0005.png", "is empty"),
    ]  # fmt: skip


def test_maps_are_kept_only_where_they_are_stored(tmp_path: Path) -> None:
    found = gathering(tmp_path, EmbedConfig(dtype="float32"), [[0, 1, 2, 3, 4]])
    found.add(decoded([0, 1, 2, 3, 4]), [features([0, 1, 2, 3, 4])])
    content = found.content(0, 0)
    assert not content.maps
    assert content.vectors.dtype == np.float32


def test_a_window_without_pictures_is_full_once_it_was_reached(tmp_path: Path) -> None:
    table = list_images(write_pictures(tmp_path, 1)).table
    found = Gathering(Window(0, np.arange(1), {0: "is empty"}), table, EmbedConfig(), WIDTH)
    assert found.add(Decoded(0, [], {}), []) == 1
    assert found.is_full()
    assert found.content(0, 0).vectors.shape == (0, WIDTH)


@pytest.mark.parametrize(
    ("scale", "words"), [(1e6, "too large for float16; use dtype float32"), (np.inf, "not finite")]
)
def test_numbers_that_cannot_be_stored_are_refused(
    scale: float, words: str, tmp_path: Path
) -> None:
    found = gathering(tmp_path, EmbedConfig(), [[1]])
    with pytest.raises(CollectionError, match=words):
        found.add(decoded([1]), [features([1], scale)])
