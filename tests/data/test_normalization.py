"""Mean and deviation: right, in one place, and undone."""

from pathlib import Path

import pytest
import torch

import veca
from veca.data.transforms import IMAGENET, MEAN, STD, Normalization


def test_the_mean_color_becomes_zero_and_one_deviation_more_becomes_one() -> None:
    mean, std = torch.tensor(MEAN), torch.tensor(STD)
    pixels = torch.stack([mean, mean + std], dim=1)[:, None]
    expected = torch.tensor([0.0, 1.0]).expand(3, 1, 2)
    torch.testing.assert_close(IMAGENET.normalize(pixels), expected)


def test_bytes_count_as_parts_of_255() -> None:
    pixels = torch.randint(0, 256, (2, 3, 5, 4), dtype=torch.uint8)
    torch.testing.assert_close(IMAGENET.normalize(pixels), IMAGENET.normalize(pixels / 255))


@pytest.mark.parametrize("normalization", [IMAGENET, Normalization((0.5,) * 3, (0.25, 0.5, 1.0))])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_denormalizing_undoes_normalizing(normalization: Normalization, dtype: torch.dtype) -> None:
    pixels = torch.rand(2, 3, 4, 5, dtype=dtype)
    back = normalization.denormalize(normalization.normalize(pixels))
    torch.testing.assert_close(back, pixels)


def test_whole_numbers_other_than_bytes_are_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"torch.int64 .* divide"):
        IMAGENET.normalize(torch.zeros(3, 2, 2, dtype=torch.int64))


def test_a_deviation_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="above zero"):
        Normalization(MEAN, (0.2, 0.0, 0.2))


def test_no_other_file_holds_the_mean() -> None:
    sources = Path(veca.__file__).parent.rglob("*.py")
    holders = [path.name for path in sources if str(MEAN[0]) in path.read_text("utf-8")]
    assert holders == ["transforms.py"]
