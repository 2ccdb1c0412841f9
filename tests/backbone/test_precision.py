"""bf16 gives what fp32 gives, as near as features are used; also where it is emulated."""

from collections.abc import Sequence
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import veca
from veca.analysis.demo import sample_photos
from veca.backbone.attention import Form
from veca.backbone.config import BackboneConfig
from veca.backbone.model import Features
from veca.runtime.device import resolve_precision

pytest.importorskip("skimage", reason="needs veca[samples], which has the photographs")

NAME = "veca-tiny"
BASELINE = "./weights/veca-tiny-full"
# Emulated products round more often than those of a CPU that computes bf16.
LEAST_COSINE = 0.999 if torch.cpu._is_avx512_bf16_supported() else 0.998


@pytest.fixture(scope="module", name="photos")
def fixture_photos() -> Tensor:
    """The middles of the sample photos."""
    whole = [veca.preprocess(photo, size=192, fit="crop") for photo in sample_photos()]
    return torch.stack([pixels[:, :192, :192] for pixels in whole])


def both(name: str) -> tuple[veca.VECA, veca.VECA]:
    """A model in fp32 and in bf16."""
    return veca.load(name), veca.load(name, precision="bf16")


def assert_alike(half: Features, whole: Features) -> None:
    """Every vector of every kind points where it did, and is an fp32 one."""
    for name in ("image", "cores", "patches"):
        one, other = getattr(half, name), getattr(whole, name)
        assert one.dtype == torch.float32
        assert not torch.equal(one, other), "bf16 was not used"
        assert float(F.cosine_similarity(one, other, dim=-1).min()) >= LEAST_COSINE, name


@pytest.mark.parametrize(("name", "budget"), [(NAME, 8), (NAME, 64), (BASELINE, None)])
def test_every_feature_is_alike(photos: Tensor, name: str, budget: int | None) -> None:
    whole, half = both(name)
    layers = range(whole.config.layers)
    with torch.inference_mode():
        assert_alike(half(photos, budget), whole(photos, budget))
        for one, other in zip(
            half.intermediates(photos, layers, budget),
            whole.intermediates(photos, layers, budget),
            strict=True,
        ):
            assert_alike(one, other)


def test_timm_names_maps_and_paths_are_computed_in_bf16_too(photos: Tensor) -> None:
    whole, half = both(NAME)
    some, last = photos[:2], whole.config.layers - 1

    def answers(model: veca.VECA) -> Sequence[Tensor]:
        """The outputs of each method."""
        return (
            model.forward_features(some, budget=8),
            model.get_intermediate_layers(some, n=1, budget=8)[0],
            model.forward_intermediates(some, indices=[last], budget=8, intermediates_only=True)[0],
            model.attention_maps(some, last, 8).flatten(3),
            model.core_maps(some, last, 8).flatten(2),
            model.core_paths(some, 8),
        )

    with torch.inference_mode():
        for one, other in zip(answers(half), answers(whole), strict=True):
            assert not torch.equal(one, other)
            assert float(F.cosine_similarity(one.float(), other, dim=-1).mean()) > 0.99
        assert half.core_paths(some, 8).dtype == torch.float32
        shares = half.core_maps(some, last, 8)
    assert shares.dtype == torch.float32


def test_load_resolves_the_precision_and_keeps_the_weights_in_fp32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert veca.load(NAME).precision == "fp32"
    model = veca.load(NAME, precision="bf16")
    assert model.precision == "bf16"
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert veca.load(NAME, precision="auto").precision == resolve_precision("auto", "cpu")
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert veca.load(NAME, precision="auto").precision == "fp32"


SMALL: dict[str, Any] = {"layers": 2, "width": 32, "heads": 2, "patch_size": 4, "budgets": (4, 8)}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"attention": "full", "budgets": BackboneConfig.budgets},
        {"local_kernel": 3},
        {"core_motion": "normalized"},
        {"core_motion": "attention"},
    ],
    ids=str,
)
def test_the_residual_stream_positions_and_tables_stay_fp32(fields: dict[str, Any]) -> None:
    model = veca.VECA(BackboneConfig(**{**SMALL, **fields})).eval()
    images = torch.randn(2, 3, 24, 32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "local_mixing" in name:
                parameter.normal_(std=0.2)
        whole = model(images)
        model.precision = "bf16"
        half = model(images)
        for form in get_args(Form):
            model.set_attention_form(form)
            with torch.autocast("cpu", torch.bfloat16):
                steps = model.trace(images, range(2), model.config.cores, model.config.hidden)
            for state in (steps[0].after, steps[1].before, steps[1].after):
                assert state.tokens.dtype == state.core_state.dtype == torch.float32
                assert state.patch_rope.cosines.dtype == state.layout.core_rope.sines.dtype
                assert state.patch_rope.cosines.dtype == torch.float32
    for one, other in zip(half[:3], whole[:3], strict=True):
        assert one.dtype == torch.float32
        assert float((one - other).norm() / other.norm().clamp(min=1e-6)) < 0.02


def test_fp32_leaves_an_outer_autocast_alone_and_other_names_are_refused() -> None:
    model = veca.VECA(BackboneConfig(**SMALL)).eval()
    images = torch.randn(1, 3, 16, 16)
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            outer = model(images)
        model.precision = "bf16"
        assert torch.equal(model(images).patches, outer.patches)
        model.precision = "auto"
        with pytest.raises(ValueError, match="precision='auto' is unknown; use 'fp32' or 'bf16'"):
            model(images)
