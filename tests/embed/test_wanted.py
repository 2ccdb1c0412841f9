"""A picture to search with is taken from the collection, or embedded by the same model."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data.pictures import encoded, saved_model, small_model, write_pictures, write_shard
from veca.data.images import ImageError
from veca.data.transforms import prepare
from veca.embed.collection import Collection, open_collection
from veca.embed.config import Efficiency, EmbedConfig
from veca.embed.errors import CollectionError
from veca.embed.models import ModelSource
from veca.embed.neighbours import nearest
from veca.embed.run import embed_collection
from veca.embed.wanted import find_wanted
from veca.runtime.device import Precision


def embedded(
    folder: Path, model: ModelSource | None = None, precision: Precision = "fp32"
) -> Collection:
    """A collection of files and of a shard's members, made with a model on the disk."""
    write_pictures(folder / "photos", 8)
    write_shard(folder / "s.tar", [("x/9.png", encoded(9)), ("x/10.png", encoded(10))])
    source = model or saved_model(folder / "model")
    config = EmbedConfig(size=32, budget=3, ffn=0.5, precision=precision, dtype="float32")
    inputs = [folder / "photos", folder / "s.tar"]
    embed_collection(inputs, source, folder / "out", config, Efficiency(workers=0))
    return open_collection(folder / "out")


def test_a_member_of_the_collection_has_its_own_vector_and_needs_no_model(tmp_path: Path) -> None:
    opened = embedded(tmp_path)
    shutil.rmtree(tmp_path / "model")
    (tmp_path / "photos" / "0003.png").unlink()
    for name, index in (("photos/0003.png", 3), ("s.tar#x/10.png", 9)):
        wanted = find_wanted(opened, tmp_path / name)
        assert wanted.is_member
        np.testing.assert_array_equal(wanted.vector, opened.vectors[index])
        assert nearest(opened, wanted.vector)[0].entry.index == index


def test_a_copy_elsewhere_gets_the_vector_of_the_original(tmp_path: Path) -> None:
    opened = embedded(tmp_path)
    copy = tmp_path / "copy.png"
    copy.write_bytes(encoded(5))
    shard = write_shard(tmp_path / "other.tar", [("a.png", encoded(0)), ("b.png", encoded(5))])
    for image in (copy, Path(f"{shard}#b.png")):
        wanted = find_wanted(opened, image)
        assert not wanted.is_member
        np.testing.assert_allclose(wanted.vector, opened.vectors[5], atol=1e-5)
        assert nearest(opened, wanted.vector)[0].entry.index == 5


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_new_picture_is_embedded_in_the_precision_of_the_collection(
    tmp_path: Path, precision: Precision
) -> None:
    opened = embedded(tmp_path, precision=precision)
    (tmp_path / "copy.png").write_bytes(encoded(5))
    found = find_wanted(opened, tmp_path / "copy.png").vector
    model = small_model()
    model.precision = precision
    pixels = prepare(tmp_path / "copy.png", 32, "resize").pixels
    with torch.inference_mode():
        expected = model(pixels[None], 3, 0.5).image[0].numpy()
    np.testing.assert_array_equal(found, expected)


def test_a_member_that_changed_is_embedded_anew(tmp_path: Path) -> None:
    opened = embedded(tmp_path)
    (tmp_path / "photos" / "0003.png").write_bytes(encoded(6) + b" ")
    wanted = find_wanted(opened, tmp_path / "photos" / "0003.png")
    assert not wanted.is_member
    assert nearest(opened, wanted.vector)[0].entry.index == 6


def test_a_model_that_moved_is_named_and_checked_by_its_hash(tmp_path: Path) -> None:
    opened = embedded(tmp_path)
    copy = tmp_path / "copy.png"
    copy.write_bytes(encoded(5))
    (tmp_path / "model").rename(tmp_path / "moved")
    with pytest.raises(CollectionError, match=r"cannot be loaded .* --model where it is now"):
        find_wanted(opened, copy)
    assert len(find_wanted(opened, copy, tmp_path / "moved").vector)
    other = saved_model(tmp_path / "another", seed=1)
    with pytest.raises(CollectionError, match=r"has the SHA-256 .* but the collection was made"):
        find_wanted(opened, copy, other)
    with pytest.raises(ValueError, match="nowhere"):
        find_wanted(opened, copy, tmp_path / "nowhere")


def test_a_model_that_was_in_memory_only_must_be_passed(tmp_path: Path) -> None:
    opened = embedded(tmp_path, small_model())
    copy = tmp_path / "copy.png"
    copy.write_bytes(encoded(5))
    with pytest.raises(CollectionError, match="was in memory only"):
        find_wanted(opened, copy)
    assert nearest(opened, find_wanted(opened, copy, small_model()).vector)[0].entry.index == 5


def test_a_picture_that_is_none_is_told_in_words(tmp_path: Path) -> None:
    opened = embedded(tmp_path)
    with pytest.raises(ImageError, match="does not exist"):
        find_wanted(opened, tmp_path / "nothing.png")
