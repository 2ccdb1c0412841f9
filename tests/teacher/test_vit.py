"""Vision transformers of transformers as teachers."""

import sys
from contextlib import suppress
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
def test_the_patch_embedding_gives_the_teachers_tokens_from_imagenet_pixels(
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


def test_a_model_of_patch_14_sees_fourteen_sixteenths_of_the_resolution() -> None:
    model = small_model("dinov2")
    sizes: list[torch.Size] = []
    embedding_layer(model).register_forward_hook(lambda *call: sizes.append(call[1][0].shape))
    teacher = ViTTeacher(model, name="dinov2")
    teacher(views(1, 256, 128), (16, 8))
    assert sizes == [(1, 3, 224, 112)]
    assert teacher.patch_embedding(16) is None


@pytest.mark.parametrize("kind", BUILDERS)
def test_models_accept_grids_other_than_that_of_their_training(kind: str) -> None:
    teacher = ViTTeacher(small_model(kind), name=kind)
    for rows, columns in ((1, 1), (3, 3), (4, 2)):
        targets = teacher(views(1, 16 * rows, 16 * columns), (rows, columns))
        assert targets.patches.shape == (1, rows * columns, teacher.patch_width)
        assert targets.image.isfinite().all()


def test_a_given_normalization_overrides_that_of_the_family() -> None:
    own = Normalization((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    teacher = ViTTeacher(small_model("vit"), name="vit", normalization=own)
    assert teacher.normalization == own


def test_radio_uses_the_normalization_inside_the_model() -> None:
    model = small_model("radio")
    model.input_conditioner.norm_mean.fill_(0.25)
    teacher = ViTTeacher(model, name="radio", normalization=IMAGENET)
    assert teacher.normalization.mean == (0.25, 0.25, 0.25)


def test_the_digest_covers_the_number_of_heads() -> None:
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
def test_patches_that_are_not_square_and_other_channels_are_refused(fields: dict[str, Any]) -> None:
    config = transformers.ViTConfig(**SIZES, **MIDDLE, image_size=32, **fields)
    with pytest.raises(TeacherError, match="needs square patches"):
        ViTTeacher(transformers.ViTModel(config), name="odd")


GRID = (2, 3)


def large_views(teacher: ViTTeacher) -> Tensor:
    """Images that need not be resized."""
    return views(2, GRID[0] * teacher.stride, GRID[1] * teacher.stride)


@pytest.mark.parametrize("kind", BUILDERS)
def test_changing_a_patch_changes_its_own_feature_most(kind: str) -> None:
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
def test_features_are_the_first_and_the_last_tokens_after_the_last_norm(kind: str) -> None:
    model = small_model(kind)
    teacher = ViTTeacher(model, name=kind)
    images = large_views(teacher)
    options = {"interpolate_pos_encoding": True} if kind == "vit" else {}
    with torch.no_grad():
        tokens = model(
            pixel_values=teacher.normalization.normalize(images), **options
        ).last_hidden_state
    assert tokens.shape[1] == PREFIXES[kind] + 6
    targets = teacher(images, GRID)
    torch.testing.assert_close(targets.image, tokens[:, 0])
    torch.testing.assert_close(targets.patches, tokens[:, -6:])


def test_patches_of_clip_pass_the_norm_of_its_class_token() -> None:
    model = small_model("clip")
    teacher = ViTTeacher(model, name="clip")
    images = large_views(teacher)
    with torch.no_grad():
        pixels = teacher.normalization.normalize(images)
        tokens = model(pixel_values=pixels, interpolate_pos_encoding=True).last_hidden_state
        wanted = model.post_layernorm(tokens)
    targets = teacher(images, GRID)
    torch.testing.assert_close(targets.image, wanted[:, 0])
    torch.testing.assert_close(targets.patches, wanted[:, 1:])


def test_the_image_feature_of_siglip_is_that_of_its_head_or_the_mean() -> None:
    model = small_model("siglip")
    teacher = ViTTeacher(model, name="siglip")
    targets = teacher(large_views(teacher), GRID)
    with torch.no_grad():
        torch.testing.assert_close(targets.image, model.head(targets.patches))
    headless = ViTTeacher(small_model("siglip-without-head"), name="siglip")
    targets = headless(large_views(headless), GRID)
    torch.testing.assert_close(targets.image, targets.patches.mean(dim=1))


def test_siglip_2_gets_the_pixels_of_each_patch_in_its_own_order() -> None:
    model = small_model("siglip2")
    teacher = ViTTeacher(model, name="siglip2")
    images = large_views(teacher)
    pixels = teacher.normalization.normalize(images)
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


def test_classes_are_found_by_name_or_the_error_asks_for_an_update() -> None:
    assert transformers_class("DINOv3ViTModel") is transformers.DINOv3ViTModel
    assert all(hasattr(transformers, family.model) for family in FAMILIES.values())
    with pytest.raises(TeacherError, match=r"has no VitOfTomorrow; update it"):
        transformers_class("VitOfTomorrow")


def test_without_the_library_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(TeacherError, match=r"pip install 'veca\[teachers\]'"):
        transformers_class("DINOv3ViTModel")


@pytest.mark.parametrize("bars", [True, False])
def test_quiet_restores_the_logging_of_the_library(bars: bool) -> None:
    logging = transformers.utils.logging
    (logging.enable_progress_bar if bars else logging.disable_progress_bar)()
    verbosity = logging.get_verbosity()
    with suppress(KeyError), quiet():
        assert not logging.is_progress_bar_enabled()
        assert logging.get_verbosity() == logging.ERROR
        raise KeyError
    assert logging.is_progress_bar_enabled() == bars
    assert logging.get_verbosity() == verbosity
    logging.disable_progress_bar()
