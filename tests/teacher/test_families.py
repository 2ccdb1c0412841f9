"""Where in a model's answer the features are."""

import pytest
import torch
from torch import Tensor

from tests.teacher.small_models import BUILDERS, PREFIXES, small_model, views
from veca.teacher.vit import FAMILIES, ViTTeacher

GRID = (2, 3)


def seen(teacher: ViTTeacher, images: Tensor) -> Tensor:
    """Normalized pixels of images that are as large as the teacher wants them."""
    assert images.shape[-1] == GRID[1] * teacher.stride
    return teacher.normalization.normalize(images)


def large_views(teacher: ViTTeacher) -> Tensor:
    """Images that need not be resized."""
    return views(2, GRID[0] * teacher.stride, GRID[1] * teacher.stride)


@pytest.mark.parametrize("kind", BUILDERS)
def test_what_changes_in_a_patch_shows_most_in_the_feature_of_that_patch(kind: str) -> None:
    teacher = ViTTeacher(small_model(kind), name=kind)
    side, images = teacher.stride, large_views(teacher)[:1]
    before = teacher(images, GRID).patches
    for place in range(6):
        row, column = divmod(place, 3)
        changed = images.clone()
        window = changed[..., row * side : (row + 1) * side, column * side : (column + 1) * side]
        window[:] = 255 - window
        moved = (teacher(changed, GRID).patches - before).norm(dim=2)[0]
        assert int(moved.argmax()) == place


@pytest.mark.parametrize("kind", [kind for kind in PREFIXES if kind not in {"clip", "siglip"}])
def test_image_and_patches_are_the_first_and_the_last_tokens_after_the_last_norm(kind: str) -> None:
    model = small_model(kind)
    teacher = ViTTeacher(model, name=kind)
    images = large_views(teacher)
    options = {"interpolate_pos_encoding": True} if kind == "vit" else {}
    with torch.no_grad():
        tokens = model(pixel_values=seen(teacher, images), **options).last_hidden_state
    assert tokens.shape[1] == PREFIXES[kind] + 6
    targets = teacher(images, GRID)
    torch.testing.assert_close(targets.image, tokens[:, 0])
    torch.testing.assert_close(targets.patches, tokens[:, -6:])


def test_the_patches_of_clip_go_through_the_norm_of_its_class_token() -> None:
    model = small_model("clip")
    teacher = ViTTeacher(model, name="clip")
    images = large_views(teacher)
    with torch.no_grad():
        pixels = seen(teacher, images)
        tokens = model(pixel_values=pixels, interpolate_pos_encoding=True).last_hidden_state
        wanted = model.post_layernorm(tokens)
    targets = teacher(images, GRID)
    torch.testing.assert_close(targets.image, wanted[:, 0])
    torch.testing.assert_close(targets.patches, wanted[:, 1:])


def test_the_image_feature_of_siglip_is_what_its_head_makes_of_the_patches() -> None:
    model = small_model("siglip")
    teacher = ViTTeacher(model, name="siglip")
    targets = teacher(large_views(teacher), GRID)
    with torch.no_grad():
        torch.testing.assert_close(targets.image, model.head(targets.patches))


def test_the_image_feature_of_a_siglip_without_head_is_the_mean_of_the_patches() -> None:
    teacher = ViTTeacher(small_model("siglip-without-head"), name="siglip")
    targets = teacher(large_views(teacher), GRID)
    torch.testing.assert_close(targets.image, targets.patches.mean(dim=1))


def test_siglip_2_for_any_size_gets_the_pixels_of_a_patch_in_its_own_order() -> None:
    model = small_model("siglip2")
    teacher = ViTTeacher(model, name="siglip2")
    images = large_views(teacher)
    pixels = seen(teacher, images)
    rows = torch.empty(2, 6, 16 * 16 * 3)
    for place in range(6):
        top, left = 16 * (place // 3), 16 * (place % 3)
        square = pixels[:, :, top : top + 16, left : left + 16]
        rows[:, place] = square.permute(0, 2, 3, 1).reshape(2, -1)
    with torch.no_grad():
        found = model(
            pixel_values=rows,
            pixel_attention_mask=torch.ones(2, 6),
            spatial_shapes=torch.tensor([GRID, GRID]),
        )
    targets = teacher(images, GRID)
    torch.testing.assert_close(targets.image, found.pooler_output)
    torch.testing.assert_close(targets.patches, found.last_hidden_state)


def test_the_image_feature_of_radio_joins_its_summary_tokens() -> None:
    model = small_model("radio")
    images = views(2, 32, 48)
    with torch.no_grad():
        found = model(pixel_values=images / 255)  # it normalizes for itself
    teacher = ViTTeacher(model, name="radio")
    targets = teacher(images, GRID)
    assert (teacher.image_width, teacher.patch_width) == (64, 32)
    torch.testing.assert_close(targets.image, found.summary)
    torch.testing.assert_close(targets.patches, found.features)


def test_every_family_has_a_class_in_the_library() -> None:
    transformers = pytest.importorskip("transformers", reason="needs veca[teachers]")
    assert all(hasattr(transformers, family.model) for family in FAMILIES.values())
