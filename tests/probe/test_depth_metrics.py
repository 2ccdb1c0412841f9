"""Errors of depth in cases worked by hand, and the exact pixels of the known crops."""

import math

import numpy as np
import pytest
import torch

from veca.data.sets.dataset import DepthRange
from veca.probe.metrics import PER_PICTURE, UNITS, counted, crop_mask, depth_metrics, picture_errors

EVERY = torch.ones(4, 5, dtype=torch.bool)


def errors_of(found: torch.Tensor, depth: torch.Tensor) -> dict[str, float]:
    return depth_metrics(picture_errors(found, depth, EVERY)[None])


def test_the_right_depth_has_no_error() -> None:
    depth = torch.rand(4, 5) * 9 + 0.5
    found = errors_of(depth, depth)
    assert set(found) == set(UNITS)
    assert {name for name, value in found.items() if value == 100} == {"delta1", "delta2", "delta3"}
    assert all(value == 0 for name, value in found.items() if not name.startswith("delta"))


def test_twice_the_depth_has_the_known_errors() -> None:
    depth = torch.rand(4, 5) * 4 + 0.5
    found = errors_of(2 * depth, depth)
    exact = depth.double()
    assert found["abs_rel"] == pytest.approx(1)
    assert found["sq_rel"] == pytest.approx(float(exact.mean()))
    assert found["rmse"] == pytest.approx(float(exact.square().mean().sqrt()))
    assert found["log10"] == pytest.approx(math.log10(2))
    assert found["rmse_log"] == pytest.approx(math.log(2))
    assert found["silog"] == pytest.approx(0, abs=1e-5)  # a factor does not count
    assert [found[f"delta{n}"] for n in (1, 2, 3)] == [0, 0, 0]  # 2 > 1.25 ** 3


def test_ratios_are_compared_in_both_directions() -> None:
    depth = torch.full((4, 5), 2.0)
    told = torch.tensor([2.0, 2.6, 2 / 1.3, 3.6, 4.0]).expand(4, 5)
    found = errors_of(told, depth)
    assert [found[f"delta{n}"] for n in (1, 2, 3)] == pytest.approx([20, 60, 80])


def test_silog_is_a_hundred_deviations_of_the_logarithm() -> None:
    depth, told = torch.rand(4, 5) + 1, torch.rand(4, 5) + 1
    spread = (told.double().log() - depth.double().log()).std(correction=0)
    assert errors_of(told, depth)["silog"] == pytest.approx(100 * float(spread))


def test_pictures_count_alike_but_for_the_pooled_error() -> None:
    small, large = torch.full((1, 1), 2.0), torch.full((1, 9), 2.0)
    errors = np.stack(
        [
            picture_errors(small + 1, small, torch.ones(1, 1, dtype=torch.bool)),
            picture_errors(large + 3, large, torch.ones(1, 9, dtype=torch.bool)),
        ]
    )
    found = depth_metrics(errors)
    assert found["rmse"] == pytest.approx(2)
    assert found["rmse_pooled"] == pytest.approx(math.sqrt((1 + 9 * 9) / 10))


def test_a_picture_without_known_depth_is_left_out() -> None:
    depth = torch.full((4, 5), 2.0)
    nothing = picture_errors(depth, depth, torch.zeros_like(EVERY))
    assert np.isnan(nothing[: len(PER_PICTURE)]).all()
    one = picture_errors(depth + 1, depth, EVERY)
    assert depth_metrics(np.stack([nothing, one])) == depth_metrics(one[None])
    with pytest.raises(ValueError, match="no pixel of any test picture"):
        depth_metrics(nothing[None])


def test_eigens_crop_of_nyu_has_its_pixels() -> None:
    mask = crop_mask((480, 640), "eigen-nyu")
    assert int(mask.sum()) == 426 * 560 == 238_560
    assert mask[45, 41]
    assert mask[470, 600]
    assert not mask[44].any()
    assert not mask[471:].any()
    assert not mask[:, 601].any()
    with pytest.raises(ValueError, match="480 x 640"):
        crop_mask((479, 640), "eigen-nyu")


@pytest.mark.parametrize(
    ("crop", "rows", "columns"),
    [("garg-kitti", (143, 349), (43, 1172)), ("eigen-kitti", (117, 321), (43, 1172))],
)
def test_crops_of_kitti_have_their_pixels(
    crop: str, rows: tuple[int, int], columns: tuple[int, int]
) -> None:
    mask = crop_mask((352, 1216), crop)
    expected = torch.zeros(352, 1216, dtype=torch.bool)
    expected[slice(*rows), slice(*columns)] = True
    assert torch.equal(mask, expected)


def test_no_crop_is_everything_and_an_unknown_one_is_refused() -> None:
    assert crop_mask((3, 4), "none").all()
    with pytest.raises(ValueError, match="'none', 'eigen-nyu', garg-kitti"):
        crop_mask((3, 4), "center")


def test_depth_counts_strictly_within_its_range() -> None:
    depth = torch.tensor([[0.0, 1e-3, 0.002], [9.99, 10.0, 11.0]])
    assert counted(depth, DepthRange()).tolist() == [[False, False, True], [True, False, False]]
