"""Corruptions, shifts and attacks."""

import io

import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from tests.data.pictures import encoded, small_model
from veca.analysis.perturb import ATTACKS, CORRUPTIONS, SHIFTS, attacked, corrupted, enlarged
from veca.data.images import decode
from veca.data.transforms import IMAGENET

PIXELS = decode(encoded(3, (256, 192))).pixels()


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_a_corruption_grows_with_its_strength_and_is_the_same_for_equal_seeds(kind: str) -> None:
    before = PIXELS.clone()
    changes = []
    for strength in range(1, 6):
        found = corrupted(PIXELS, kind, strength, seed=1)
        assert (found.shape, found.dtype) == (PIXELS.shape, torch.uint8)
        assert torch.equal(found, corrupted(PIXELS, kind, strength, seed=1))
        changes.append((found.double() - PIXELS).square().mean().item())
    assert changes == sorted(changes)
    assert changes[0] > 0
    assert torch.equal(PIXELS, before)


def test_noise_has_its_standard_deviation_and_another_seed_gives_other_noise() -> None:
    gray = torch.full((3, 64, 64), 128, dtype=torch.uint8)
    found = corrupted(gray, "noise", 2, seed=0)
    assert found.double().std() / 255 == pytest.approx(0.08, rel=0.02)
    assert not torch.equal(found, corrupted(gray, "noise", 2, seed=1))


def test_contrast_brightness_and_jpeg_do_what_they_say() -> None:
    gray = torch.tensor([100, 200], dtype=torch.uint8).repeat(3, 2, 1)
    assert corrupted(gray, "contrast", 2)[0, 0].tolist() == [125, 175]
    assert corrupted(gray, "brightness", 2)[0, 0].tolist() == [151, 251]
    buffer = io.BytesIO()
    Image.fromarray(PIXELS.permute(1, 2, 0).numpy()).save(buffer, "JPEG", quality=25)
    again = decode(buffer.getvalue()).pixels()
    assert torch.equal(corrupted(PIXELS, "jpeg", 2), again)


@pytest.mark.parametrize("name", SHIFTS)
def test_a_shift_takes_points_where_it_takes_what_is_there(name: str) -> None:
    """A bright spot in the image moves like a point on it, and so does the map of that spot."""
    image = torch.zeros(3, 64, 64, dtype=torch.uint8)
    image[:, 20:28, 36:44] = 255
    point = torch.tensor([[2 * 40 / 64 - 1, 2 * 24 / 64 - 1]])
    shift = SHIFTS[name]
    wanted = (shift.points(point)[0] + 1) / 2 * 64
    for found in (shift.pixels(image, 0).float().mean(0), shift.maps(image.float())[0]):
        weights = found.clamp(min=128) - 128  # what noise and JPEG leave is dark
        y, x = torch.meshgrid(torch.arange(64) + 0.5, torch.arange(64) + 0.5, indexing="ij")
        center = torch.stack(((weights * x).sum(), (weights * y).sum())) / weights.sum()
        torch.testing.assert_close(center, wanted, atol=0.3, rtol=0)


def test_the_crop_shows_the_central_part() -> None:
    ramp = torch.linspace(0, 1, 16).repeat(1, 16, 1)
    found = enlarged(ramp)
    assert found.shape == ramp.shape
    assert found[0, 8, 0].item() == pytest.approx(2 / 16, abs=0.03)
    assert found[0, 8, 15].item() == pytest.approx(14 / 16, abs=0.03)


@pytest.mark.parametrize(("name", "steps"), ATTACKS.items())
def test_an_attack_turns_the_feature_further_than_noise_and_keeps_within_epsilon(
    name: str, steps: int
) -> None:
    model, epsilon = small_model(), 8 / 255
    images = torch.stack([decode(encoded(number, (32, 32))).pixels() for number in range(3)])
    clean = images / 255
    found = attacked(model, images, 4, epsilon=epsilon, steps=steps)
    assert (found - clean).abs().max() <= epsilon + 1e-6
    assert found.min() >= 0
    assert found.max() <= 1
    noisy = (clean + epsilon * torch.randn_like(clean).sign()).clamp(0, 1)

    def similarity(colors: torch.Tensor) -> float:
        first, second = (model(IMAGENET.normalize(one), 4).image for one in (clean, colors))
        return float(F.cosine_similarity(first, second, dim=1).mean())

    with torch.no_grad():
        assert similarity(found) < similarity(noisy)
    assert all(parameter.grad is None for parameter in model.parameters())
