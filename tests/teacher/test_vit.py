"""Vision transformers of transformers as teachers."""

import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.teacher.small_models import (
    BUILDERS,
    MIDDLE,
    PREFIXES,
    SIZES,
    small_model,
    transformers,
    views,
)
from veca.data.transforms import IMAGENET, Normalization
from veca.teacher.teacher import TeacherError
from veca.teacher.vit import FAMILIES, ViTTeacher, quiet, transformers_class


def embedding_layer(model: Any) -> nn.Module:
    """The layer of a model that turns pixels into tokens."""
    return next(
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.Conv2d) or name.endswith(("patch_embedding", "patch_projection"))
    )


@pytest.mark.parametrize("kind", BUILDERS)
def test_the_patch_embedding_does_to_imagenet_pixels_what_the_teacher_does_to_its_own(
    kind: str,
) -> None:
    model = small_model(kind)
    teacher = ViTTeacher(model, name=kind)
    side = teacher.stride
    found: list[Tensor] = []
    embedding_layer(model).register_forward_hook(lambda *call: found.append(call[2]))
    images = views(2, 2 * side, 3 * side)
    teacher(images, (2, 3))
    tokens = found[0] if found[0].ndim == 3 else found[0].flatten(2).transpose(1, 2)

    embedding = teacher.patch_embedding(side)
    assert embedding is not None
    weight, bias = embedding
    own = F.conv2d(IMAGENET.normalize(images), weight, bias, stride=side).flatten(2).transpose(1, 2)
    torch.testing.assert_close(own, tokens, atol=1e-4, rtol=1e-4)


def test_there_is_no_patch_embedding_of_another_size() -> None:
    assert ViTTeacher(small_model("dinov2"), name="dinov2").patch_embedding(16) is None


def test_a_model_of_patch_14_sees_fourteen_sixteenths_of_the_resolution() -> None:
    model = small_model("dinov2")
    sizes: list[torch.Size] = []
    embedding_layer(model).register_forward_hook(lambda *call: sizes.append(call[1][0].shape))
    ViTTeacher(model, name="dinov2")(views(1, 256, 128), (16, 8))
    assert sizes == [(1, 3, 224, 112)]


@pytest.mark.parametrize("kind", BUILDERS)
def test_grids_that_a_model_was_not_trained_with_work(kind: str) -> None:
    teacher = ViTTeacher(small_model(kind), name=kind)
    for rows, columns in ((1, 1), (3, 3), (4, 2)):
        targets = teacher(views(1, 16 * rows, 16 * columns), (rows, columns))
        assert targets.patches.shape == (1, rows * columns, teacher.patch_width)
        assert targets.image.isfinite().all()


def test_a_given_normalization_goes_before_that_of_the_family() -> None:
    own = Normalization((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    teacher = ViTTeacher(small_model("vit"), name="vit", normalization=own)
    assert teacher.normalization == own


def test_radio_keeps_the_normalization_that_lies_in_the_model() -> None:
    model = small_model("radio")
    model.input_conditioner.norm_mean.fill_(0.25)
    teacher = ViTTeacher(model, name="radio", normalization=IMAGENET)
    assert teacher.normalization.mean == (0.25, 0.25, 0.25)


def test_models_that_differ_in_heads_alone_have_other_digests() -> None:
    def digest(heads: int) -> str | None:
        fields = SIZES | MIDDLE | {"num_attention_heads": heads}
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = transformers.ViTModel(
                transformers.ViTConfig(**fields, image_size=32), add_pooling_layer=False
            )
        return ViTTeacher(model, name="vit").digest

    assert digest(2) == digest(2)
    assert digest(2) != digest(4)


@pytest.mark.parametrize("fields", [{"patch_size": [16, 8]}, {"num_channels": 4}])
def test_patches_that_are_no_squares_and_other_colors_are_refused(fields: dict[str, Any]) -> None:
    config = transformers.ViTConfig(**SIZES, **MIDDLE, image_size=32, **fields)
    with pytest.raises(TeacherError, match="needs square patches"):
        ViTTeacher(transformers.ViTModel(config), name="odd")


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


def test_a_class_is_found_by_its_name() -> None:
    assert transformers_class("DINOv3ViTModel") is transformers.DINOv3ViTModel


def test_a_class_that_an_old_library_lacks_asks_for_an_update() -> None:
    with pytest.raises(TeacherError, match=r"has no VitOfTomorrow; update it"):
        transformers_class("VitOfTomorrow")


def test_without_the_library_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(TeacherError, match=r"pip install 'veca\[teachers\]'"):
        transformers_class("DINOv3ViTModel")


def fail_quietly() -> None:
    """Fail where the library is quiet."""
    logging = transformers.utils.logging
    with quiet():
        assert not logging.is_progress_bar_enabled()
        assert logging.get_verbosity() == logging.ERROR
        raise KeyError


@pytest.mark.parametrize("bars", [True, False])
def test_the_library_speaks_again_afterwards_as_it_did_before(bars: bool) -> None:
    logging = transformers.utils.logging
    (logging.enable_progress_bar if bars else logging.disable_progress_bar)()
    verbosity = logging.get_verbosity()
    with pytest.raises(KeyError):
        fail_quietly()
    assert logging.is_progress_bar_enabled() == bars
    assert logging.get_verbosity() == verbosity
    logging.disable_progress_bar()
