"""Vision transformers as teachers."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.teacher.small_models import BUILDERS, MIDDLE, SIZES, small_model, transformers, views
from veca.data.transforms import IMAGENET, Normalization
from veca.teacher.teacher import TeacherError
from veca.teacher.vit import ViTTeacher


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
