"""Center and scale of targets."""

import pytest
import torch

from veca.distill.target_scaling import Moments, TargetScaling
from veca.teacher.teacher import Targets


def moments_of(vectors: torch.Tensor) -> Moments:
    """Moments of these vectors alone."""
    moments = Moments(vectors.shape[-1])
    moments.add(vectors)
    return moments


def sparse_targets() -> Targets:
    """All positive and sparse, with channels of very different size, as a ReLU network has them."""
    sizes = torch.logspace(-1, 1, 6)
    return Targets((torch.randn(50, 4) + 3).relu(), (torch.randn(50, 9, 6) - 1).relu() * sizes)


def fitted(targets: Targets) -> TargetScaling:
    """Scaling by the targets' own moments."""
    return TargetScaling.from_moments(moments_of(targets.image), moments_of(targets.patches))


def test_scaled_targets_have_mean_zero_and_channels_of_mean_square_one() -> None:
    targets = sparse_targets()
    scaled = fitted(targets)(targets)
    for tensor in scaled:
        rows = tensor.double().flatten(0, -2)
        assert rows.mean(0).abs().max() < 1e-5
        assert float(rows.square().mean()) == pytest.approx(1, rel=1e-5)


def test_one_scale_keeps_the_ratios_of_distances() -> None:
    targets = sparse_targets()
    before, after = targets.image, fitted(targets)(targets).image
    ratios = torch.pdist(before) / torch.pdist(after)
    torch.testing.assert_close(ratios, torch.full_like(ratios, float(ratios[0])), rtol=1e-4, atol=0)


def test_the_identity_leaves_targets_bit_for_bit() -> None:
    targets = sparse_targets()
    scaled = TargetScaling.identity(4, 6)(targets)
    assert torch.equal(scaled.image, targets.image)
    assert torch.equal(scaled.patches, targets.patches)


def test_a_stored_scaling_scales_as_before() -> None:
    targets = sparse_targets()
    scaling, stored = fitted(targets), TargetScaling.identity(4, 6)
    stored.load_state_dict(scaling.state_dict())
    assert set(scaling.state_dict()) == {
        "image_center", "image_scale", "patch_center", "patch_scale"
    }  # fmt: skip
    assert torch.equal(stored(targets).patches, scaling(targets).patches)
    assert not list(scaling.parameters())


@pytest.mark.parametrize("value", [0.0, 1234.5])
def test_features_that_never_change_are_refused(value: float) -> None:
    rounding = 1 + 1e-7 * torch.randn(100, 3)
    constant = moments_of(value * rounding)
    with pytest.raises(ValueError, match="image features are the same for all 100 samples"):
        TargetScaling.from_moments(constant, moments_of(torch.randn(9, 3)))
    with pytest.raises(ValueError, match="patch features are the same"):
        TargetScaling.from_moments(moments_of(torch.randn(9, 3)), constant)


def test_an_image_feature_can_be_brought_back_to_what_the_teacher_said() -> None:
    scaling = TargetScaling(6, 4)
    scaling.image_center.copy_(torch.randn(6))
    scaling.image_scale.fill_(3.0)
    said = Targets(torch.randn(2, 6), torch.randn(2, 5, 4))
    torch.testing.assert_close(scaling.unscaled_image(scaling(said).image), said.image)
