"""Sizes of pictures that the paper uses, which depend on the patches of a model."""

from collections.abc import Mapping

PATCH_14: Mapping[int, int] = {256: 252, 384: 392, 512: 518, 768: 770}
"""Pixels for patches of 14 in the place of those for 16 (section A.5, Table S.10)."""


def paper_side(pixels: int, stride: int) -> int:
    """The size for a stride where the paper has `pixels` for 16; the same where it tells none."""
    return PATCH_14.get(pixels, pixels) if stride == 14 else pixels
