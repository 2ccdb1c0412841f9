"""`veca.encode`: pictures of any kind and size in one call."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import veca
from tests.data.pictures import small_model

SIDES = [(80, 40), (40, 80), (33, 33), (80, 40), (64, 32), (40, 80), (80, 40)]


@pytest.fixture(scope="module")
def model() -> veca.VECA:
    return small_model()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """A path, bytes, a PIL image, an array, a tensor, an open file and a path, of several sizes."""
    folder = tmp_path_factory.mktemp("pictures")
    draw = np.random.default_rng(0)
    arrays = [draw.integers(0, 256, (*side, 3), np.uint8) for side in SIDES]
    for number, array in enumerate(arrays):
        Image.fromarray(array).save(folder / f"{number}.png")
    files = [folder / f"{number}.png" for number in range(len(arrays))]
    return [
        files[0],
        files[1].read_bytes(),
        Image.fromarray(arrays[2]),
        arrays[3],
        torch.from_numpy(arrays[4]).permute(2, 0, 1),
        io.BytesIO(files[5].read_bytes()),
        str(files[6]),
    ]


@pytest.mark.parametrize("batch_size", [1, 2, 16])
def test_each_picture_has_the_features_that_it_has_alone_in_the_order_given(
    model: veca.VECA, pictures: list[Any], batch_size: int
) -> None:
    found = veca.encode(model, pictures, size=32, budget=3, batch_size=batch_size)
    assert len(found) == len(pictures)
    for features, picture in zip(found, pictures, strict=True):
        pixels = veca.preprocess(picture, size=32, patch_size=16)
        expected = model(pixels[None], budget=3)
        assert features.grid == expected.grid
        torch.testing.assert_close(features.patches, expected.patches, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(features.image, expected.image, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(features.core_points, expected.core_points)
        assert features.patch_map.shape == (1, 32, *features.grid)


def test_sizes_that_never_fill_a_batch_do_not_wait_for_ever(
    model: veca.VECA, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches, forward = list[int](), type(model).forward

    def counted(self: veca.VECA, images: torch.Tensor, *settings: Any) -> veca.Features:
        batches.append(len(images))
        return forward(self, images, *settings)

    monkeypatch.setattr(type(model), "forward", counted)
    strips = [np.zeros((16, 16 * sides, 3), np.uint8) for sides in range(1, 11)]
    found = veca.encode(model, strips, size=None, batch_size=2)
    assert [features.grid for features in found] == [(1, sides) for sides in range(1, 11)]
    assert batches == [1] * 10


def test_large_pictures_do_not_wait_for_others(
    model: veca.VECA, monkeypatch: pytest.MonkeyPatch
) -> None:
    patches, forward = list[int](), type(model).forward

    def counted(self: veca.VECA, images: torch.Tensor, *settings: Any) -> veca.Features:
        patches.append(images.shape[0] * images.shape[2] * images.shape[3] // 256)
        return forward(self, images, *settings)

    monkeypatch.setattr(type(model), "forward", counted)
    sizes = [(2, 2), (1, 1), (2, 2), (1, 2), (2, 2), (2, 2)]
    pictures = [np.zeros((16 * rows, 16 * columns, 3), np.uint8) for rows, columns in sizes]
    found = veca.encode(model, pictures, size=None, max_patches=4)
    assert [features.grid for features in found] == sizes
    assert patches == [4, 4, 4, 4, 1, 2]
    with pytest.raises(veca.ImageError, match=r"images\[0\]: .* 4 patches, but at most 3"):
        veca.encode(model, pictures, size=None, max_patches=3)


def test_no_batch_is_larger_than_asked_for_while_a_large_picture_waits(
    model: veca.VECA, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches, forward = list[int](), type(model).forward

    def counted(self: veca.VECA, images: torch.Tensor, *settings: Any) -> veca.Features:
        batches.append(len(images))
        return forward(self, images, *settings)

    monkeypatch.setattr(type(model), "forward", counted)
    sides = [(16, 48), (16, 16), (16, 16), (16, 16)]
    pictures = [np.zeros((*shape, 3), np.uint8) for shape in sides]
    veca.encode(model, pictures, size=None, batch_size=2, max_patches=4)
    assert batches == [2, 1, 1]


def test_features_carry_no_gradient_but_a_head_can_be_trained_on_them(
    model: veca.VECA, pictures: list[Any]
) -> None:
    features = torch.cat([one.image for one in veca.encode(model, pictures, size=16)])
    assert not features.requires_grad
    head = torch.nn.Linear(32, 2)
    head(features).sum().backward()
    assert head.weight.grad is not None


def test_a_model_in_training_mode_encodes_as_in_evaluation_and_goes_on_training(
    model: veca.VECA, pictures: list[Any]
) -> None:
    (expected,) = veca.encode(model, pictures[:1], size=16)
    model.train()
    try:
        (found,) = veca.encode(model, pictures[:1], size=16)
        assert model.training
    finally:
        model.eval()
    assert torch.equal(found.patches, expected.patches)


def test_a_picture_that_cannot_be_used_is_named_by_its_place(
    model: veca.VECA, pictures: list[Any], tmp_path: Path
) -> None:
    with pytest.raises(veca.ImageError, match=r"images\[1\]: .*nowhere.jpg does not exist"):
        veca.encode(model, [pictures[0], tmp_path / "nowhere.jpg"])
    assert not model.training


def test_paths_may_be_in_an_array(model: veca.VECA, tmp_path: Path) -> None:
    for number in range(2):
        Image.new("RGB", (16, 16 + 16 * number)).save(tmp_path / f"{number}.png")
    paths = np.array([str(path) for path in sorted(tmp_path.iterdir())])
    assert [found.grid for found in veca.encode(model, paths, size=16)] == [(1, 1), (2, 1)]


@pytest.mark.parametrize("picture", ["a.jpg", b"", torch.zeros(3, 8, 8), Image.new("L", (9, 9))])
def test_a_single_picture_is_asked_for_in_a_list(model: veca.VECA, picture: Any) -> None:
    with pytest.raises(
        (ValueError, TypeError), match=r"one picture|images"
    ):  # or by the shape hook
        veca.encode(model, picture)
    with pytest.raises(ValueError, match="batch_size=0"):
        veca.encode(model, [], batch_size=0)
    assert veca.encode(model, []) == []
