"""CLIP models as open_clip stores them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.teacher.small_models import transformers, views
from tests.weights.models import same_weights
from veca.data.transforms import Normalization
from veca.teacher.layouts import load_folder
from veca.teacher.registry import load_teacher
from veca.teacher.teacher import TeacherError
from veca.teacher.vit import OPENAI, ViTTeacher

GRID = (2, 3)
SAFE, PICKLED = "open_clip_model.safetensors", "open_clip_pytorch_model.bin"


def clip(activation: str = "gelu") -> Any:
    """A model with heads of 16 channels, every number of which is drawn."""
    config = transformers.CLIPVisionConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        image_size=32,
        patch_size=16,
        hidden_act=activation,
    )
    with torch.no_grad():
        model = transformers.CLIPVisionModel(config).eval()
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def in_open_clip_names(model: Any) -> dict[str, Tensor]:
    """The weights under the names that open_clip gives them, beside some of a text half."""
    embedding = model.embeddings
    found: dict[str, Tensor] = {
        "logit_scale": torch.ones(()),
        "positional_embedding": torch.rand(8, 16),
        "transformer.resblocks.0.ln_1.weight": torch.rand(16),
        "visual.class_embedding": embedding.class_embedding,
        "visual.positional_embedding": embedding.position_embedding.weight,
        "visual.conv1.weight": embedding.patch_embedding.weight,
        "visual.proj": torch.rand(32, 16),
        "visual.ln_pre.weight": model.pre_layrnorm.weight,
        "visual.ln_pre.bias": model.pre_layrnorm.bias,
        "visual.ln_post.weight": model.post_layernorm.weight,
        "visual.ln_post.bias": model.post_layernorm.bias,
    }
    for number, layer in enumerate(model.encoder.layers):
        block, attention = f"visual.transformer.resblocks.{number}.", layer.self_attn
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        found[f"{block}attn.in_proj_weight"] = torch.cat([one.weight for one in projections])
        found[f"{block}attn.in_proj_bias"] = torch.cat([one.bias for one in projections])
        parts = {
            "ln_1": layer.layer_norm1,
            "ln_2": layer.layer_norm2,
            "attn.out_proj": attention.out_proj,
            "mlp.c_fc": layer.mlp.fc1,
            "mlp.c_proj": layer.mlp.fc2,
        }
        for name, part in parts.items():
            found[f"{block}{name}.weight"], found[f"{block}{name}.bias"] = part.weight, part.bias
    return {name: tensor.detach().clone() for name, tensor in found.items()}


def config_of(quick: bool = False, **preprocessing: Any) -> dict[str, Any]:
    """A configuration as open_clip writes it."""
    vision = {"image_size": 32, "layers": 2, "width": 32, "patch_size": 16, "head_width": 16}
    model = {"embed_dim": 16, "vision_cfg": vision, "text_cfg": {}} | (
        {"quick_gelu": True} if quick else {}
    )
    return {"model_cfg": model, "preprocess_cfg": preprocessing}


def stored(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any], file: str) -> Path:
    """A folder as open_clip writes it."""
    if file == SAFE:
        save_file(tensors, folder / file)
    else:
        torch.save(tensors, folder / file)
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("file", [SAFE, PICKLED])
def test_a_model_of_open_clip_answers_as_the_same_model_of_transformers(
    file: str, quick: bool, tmp_path: Path
) -> None:
    model = clip("quick_gelu" if quick else "gelu")
    config = config_of(quick, mean=[0.1, 0.2, 0.3], std=[0.5, 0.6, 0.7])
    teacher = load_teacher(str(stored(tmp_path, in_open_clip_names(model), config, file)))
    assert isinstance(teacher, ViTTeacher)
    assert teacher.normalization == Normalization((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    wanted = ViTTeacher(model, name="own", normalization=teacher.normalization)
    assert teacher.digest == wanted.digest  # activation and heads are part of it
    for found, own in zip(teacher(views(), GRID), wanted(views(), GRID), strict=True):
        torch.testing.assert_close(found, own)


def test_pixels_are_openais_where_nothing_is_said(tmp_path: Path) -> None:
    stored(tmp_path, in_open_clip_names(clip()), config_of(), SAFE)
    assert load_folder(tmp_path, name="clip").normalization == OPENAI


def test_weights_of_open_clip_do_where_transformers_has_only_pickled_ones(tmp_path: Path) -> None:
    model = clip()
    model.config.save_pretrained(tmp_path)
    stored(tmp_path, in_open_clip_names(model), config_of(), SAFE)
    (tmp_path / "pytorch_model.bin").write_bytes(b"never read")
    assert same_weights(load_folder(tmp_path, name="clip").network, model)


def test_weights_of_transformers_go_first(tmp_path: Path) -> None:
    model = clip()
    model.save_pretrained(tmp_path)
    stored(tmp_path, {"visual.conv1.weight": torch.zeros(1)}, config_of(), SAFE)
    assert same_weights(load_folder(tmp_path, name="clip").network, model)


def test_loading_leaves_random_numbers_alone(tmp_path: Path) -> None:
    stored(tmp_path, in_open_clip_names(clip()), config_of(), SAFE)
    torch.manual_seed(3)
    untouched = torch.rand(1)
    torch.manual_seed(3)
    load_folder(tmp_path, name="clip")
    assert torch.equal(torch.rand(1), untouched)


def test_a_configuration_without_weights_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config_of()))
    with pytest.raises(TeacherError, match=rf"no weights beside it; put {SAFE} or {PICKLED}"):
        load_folder(tmp_path, name="clip")


def test_weights_that_nobody_knows_are_named(tmp_path: Path) -> None:
    tensors = in_open_clip_names(clip())
    tensors["visual.transformer.resblocks.1.ls_1.gamma"] = torch.ones(32)
    del tensors["visual.ln_post.bias"]
    stored(tmp_path, tensors, config_of(), SAFE)
    with pytest.raises(TeacherError, match=r"layers\.1\.ls_1\.gamma', 'post_layernorm\.bias'"):
        load_folder(tmp_path, name="clip")


def test_a_network_that_is_no_transformer_of_open_clip_is_refused(tmp_path: Path) -> None:
    stored(tmp_path, {"visual.trunk.stem.weight": torch.zeros(1)}, config_of(), SAFE)
    with pytest.raises(TeacherError, match="no vision transformer of open_clip's own"):
        load_folder(tmp_path, name="clip")


def test_a_pickled_file_gives_tensors_or_nothing(tmp_path: Path) -> None:
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config_of()))
    torch.save({"epoch": 3}, tmp_path / PICKLED)
    with pytest.raises(TeacherError, match="something else than tensors by name"):
        load_folder(tmp_path, name="clip")
    torch.save(Path("any object"), tmp_path / PICKLED)
    with pytest.raises(TeacherError, match="cannot be read"):
        load_folder(tmp_path, name="clip")
