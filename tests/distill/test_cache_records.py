"""Records: what a number loses on its way to the disk and back."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from veca.distill.cache_records import (
    HEADROOM,
    LARGEST_HALF,
    RecordLayout,
    Records,
    fit_scales,
    mean_cosine,
)
from veca.distill.config import KeptPrecision
from veca.teacher.teacher import Targets

CPU = torch.device("cpu")


def layout(dtype: KeptPrecision) -> RecordLayout:
    """Records of three image channels and two patches of five."""
    return RecordLayout(image_width=3, patches=2, channels=5, dtype=dtype)


def outputs(count: int = 40, seed: int = 0) -> Targets:
    """Outputs whose channels have very different sizes."""
    draw = torch.Generator().manual_seed(seed)
    sizes = torch.tensor([100.0, 10.0, 1.0, 0.5, 0.2])
    patches = torch.randn(count, 2, 5, generator=draw) * sizes
    return Targets(torch.randn(count, 3, generator=draw), patches)


def there_and_back(records: Records, targets: Targets) -> Targets:
    """Outputs after they were kept."""
    return records.unpack(records.pack(targets), CPU)


def test_half_precision_keeps_three_digits_of_every_number() -> None:
    wanted = outputs()
    found = there_and_back(Records(layout=layout("float16"), scales=None), wanted)

    torch.testing.assert_close(found.image, wanted.image, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(found.patches, wanted.patches, rtol=1e-3, atol=1e-6)
    assert found.image.dtype == found.patches.dtype == torch.float32


@given(seed=st.integers(0, 2**31), margin=st.floats(0.1, HEADROOM))
def test_int8_errs_by_half_a_step_within_its_reach(seed: int, margin: float) -> None:
    scales = fit_scales(outputs(seed=seed).patches)
    records = Records(layout=layout("int8"), scales=scales)
    wanted = outputs(seed=seed)
    wanted = Targets(wanted.image, wanted.patches * margin)

    error = (there_and_back(records, wanted).patches - wanted.patches).abs()
    assert (error <= 0.501 * scales).all()


def test_int8_cuts_off_what_lies_beyond_its_reach() -> None:
    records = Records(layout=layout("int8"), scales=fit_scales(outputs().patches))
    far = Targets(torch.zeros(1, 3), torch.full((1, 2, 5), -1e9))

    torch.testing.assert_close(
        there_and_back(records, far).patches[0, 0],
        -HEADROOM * outputs().patches.abs().amax((0, 1)),
    )


def test_int8_keeps_directions_better_than_one_percent() -> None:
    wanted = outputs()
    records = Records(layout=layout("int8"), scales=fit_scales(wanted.patches))
    assert mean_cosine(there_and_back(records, wanted).patches, wanted.patches) > 0.999


def test_a_channel_that_was_always_zero_still_gets_a_step() -> None:
    patches = outputs().patches
    patches[..., 4] = 0

    scales = fit_scales(patches)
    assert scales[4] == pytest.approx(float(scales.max()) / 1000)
    torch.testing.assert_close(fit_scales(torch.zeros(2, 5)), torch.ones(5))


def test_numbers_beyond_half_precision_stay_finite() -> None:
    wanted = Targets(torch.full((1, 3), 1e6), torch.full((1, 2, 5), -1e6))
    found = there_and_back(Records(layout=layout("float16"), scales=None), wanted)

    assert found.image.unique().tolist() == [LARGEST_HALF]
    assert found.patches.unique().tolist() == [-LARGEST_HALF]


def test_a_record_takes_two_bytes_or_one_for_each_patch_channel() -> None:
    assert layout("float16").kind.itemsize == 2 * 3 + 2 * 2 * 5
    assert layout("int8").kind.itemsize == 2 * 3 + 2 * 5


def test_the_cosine_is_the_mean_over_vectors() -> None:
    found, wanted = torch.eye(2), torch.tensor([[2.0, 0.0], [1.0, 0.0]])
    assert mean_cosine(found, wanted) == pytest.approx(0.5)
