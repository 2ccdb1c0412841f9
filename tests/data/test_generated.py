"""Generated pictures: the same number is the same picture, and the label is not in the colors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veca.data.generated import LABELS, generated_picture

ROUNDS = 8


def series(seed: int, count: int, side: int = 32) -> np.ndarray:
    """Pictures of a seed as bytes, (count, side, side, 3)."""
    return np.stack([np.asarray(generated_picture(seed, n, side)[0]) for n in range(count)])


@settings(max_examples=25)
@given(st.integers(0, 2**63), st.integers(0, 10**9), st.integers(1, 80))
def test_a_picture_depends_on_its_seed_and_number_alone(seed: int, number: int, side: int) -> None:
    first, label = generated_picture(seed, number, side)
    np.random.default_rng(1).random()
    again, same = generated_picture(seed, number, side)
    assert first.mode == "RGB"
    assert first.size == (side, side)
    assert first.tobytes() == again.tobytes()
    assert label == same == number % len(LABELS)


def test_no_two_pictures_of_neighboring_seeds_and_numbers_are_equal() -> None:
    made = {
        generated_picture(seed, number, 16)[0].tobytes()
        for seed in range(3)
        for number in range(3 * len(LABELS))
    }
    assert len(made) == 9 * len(LABELS)


def test_every_run_of_pictures_shows_every_label_once() -> None:
    labels = [generated_picture(0, number, 8)[1] for number in range(5, 5 + len(LABELS))]
    assert sorted(labels) == list(range(len(LABELS)))
    assert 8 <= len(LABELS) == len(set(LABELS)) <= 12


def test_a_larger_side_shows_the_same_picture_finer() -> None:
    for number in range(len(LABELS)):
        small = np.asarray(generated_picture(3, number, 96)[0].resize((16, 16)), float)
        large = np.asarray(generated_picture(3, number, 192)[0].resize((16, 16)), float)
        assert np.corrcoef(small.ravel(), large.ravel())[0, 1] > 0.9, LABELS[number]


def test_a_pattern_stands_out_from_its_ground_in_gray() -> None:
    gray = series(0, ROUNDS * len(LABELS)).astype(float) @ (0.299, 0.587, 0.114)
    contrast = gray.std(axis=(1, 2)).reshape(ROUNDS, len(LABELS))
    assert contrast.min() > 5
    assert (np.median(contrast, axis=0) > 15).all()


def test_pictures_of_one_label_have_neither_colors_nor_pixels_in_common() -> None:
    pictures = series(0, ROUNDS * len(LABELS)).astype(float)
    by_label = pictures.reshape(ROUNDS, len(LABELS), -1).transpose(1, 0, 2)
    colors = pictures.mean(axis=(1, 2)).reshape(ROUNDS, len(LABELS), 3)
    assert (colors.std(axis=0) > 15).all()
    for label, own in zip(LABELS, by_label, strict=True):
        alike = np.corrcoef(own)[np.triu_indices(ROUNDS, 1)]
        assert abs(alike.mean()) < 0.35, label


def test_structure_tells_what_pixels_do_not() -> None:
    """Stripes change along one direction, rings along every one; colors have no part in it."""
    coherent = {"stripes": [], "rings": []}  # type: dict[str, list[float]]
    for number in range(12 * len(LABELS)):
        if LABELS[number % len(LABELS)] in coherent:
            gray = np.asarray(generated_picture(1, number, 96)[0].convert("L"), float)
            down, across = np.gradient(gray)
            double = complex((across**2 - down**2).mean(), 2 * (across * down).mean())
            strength = abs(double) / (across**2 + down**2).mean()
            coherent[LABELS[number % len(LABELS)]].append(strength)
    assert np.median(coherent["stripes"]) > 0.4
    assert np.median(coherent["rings"]) < 0.3


@pytest.mark.parametrize(("seed", "number", "side"), [(-1, 0, 8), (0, -1, 8), (0, 0, 0)])
def test_what_cannot_be_drawn_is_refused(seed: int, number: int, side: int) -> None:
    with pytest.raises(ValueError, match="seed and number begin at 0, side at 1"):
        generated_picture(seed, number, side)
