"""The one type a model answers with."""

import torch

from veca.backbone.features import Features


def test_the_patch_map_is_the_patches_row_by_row() -> None:
    patches = torch.arange(2 * 6 * 4.0).reshape(2, 6, 4)
    features = Features(torch.zeros(2, 3, 4), patches, torch.zeros(2, 3, 2), (2, 3))
    assert features.patch_map.shape == (2, 4, 2, 3)
    assert torch.equal(features.patch_map[1, :, 1, 2], patches[1, 5])
    assert torch.equal(features.patch_map[0, :, 0, 1], patches[0, 1])


def test_the_image_feature_is_the_first_core() -> None:
    cores = torch.randn(2, 3, 4)
    features = Features(cores, torch.zeros(2, 6, 4), torch.zeros(2, 3, 2), (2, 3))
    assert torch.equal(features.image, cores[:, 0])
