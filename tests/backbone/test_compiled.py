"""The model through torch.compile and torch.export; without the shape hook, which trips them."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

from veca.backbone import rope as rotary
from veca.backbone.config import BackboneConfig
from veca.backbone.model import VECA

pytestmark = pytest.mark.compiled

CONFIG = BackboneConfig(
    layers=2, width=32, heads=2, patch_size=4, budgets=(2, 4, 8), ffn_shares=(0.5, 1.0)
)

MIXING = {"local_kernel": 3, "core_motion": "attention"}
FULL = {"attention": "full", "budgets": BackboneConfig.budgets}


def model(**fields: Any) -> VECA:
    torch.manual_seed(0)
    return VECA(BackboneConfig(**{**vars(CONFIG), **fields})).eval()


def images(batch: int, height: int, width: int) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(batch, 3, height, width)


def assert_same(actual: Any, expected: Any) -> None:
    for mine, other in zip(actual[:3], expected[:3], strict=True):
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-5)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch._dynamo.reset()
    rotary.cached_patch_rope.cache_clear()


@pytest.mark.parametrize(
    ("fields", "form", "budget"),
    [({}, "plain", 3), ({}, "folded", None), (MIXING, "plain", None), (MIXING, "folded", 3)],
)
def test_one_graph_holds_the_whole_forward_pass(
    fields: dict[str, Any], form: Any, budget: int | None
) -> None:
    eager = model(**fields)
    eager.set_attention_form(form)
    counter = CompileCounter()
    compiled = torch.compile(eager, backend=counter, fullgraph=True)
    assert_same(compiled(images(2, 8, 12), budget, 0.5), eager(images(2, 8, 12), budget, 0.5))
    assert counter.frame_count == 1


@pytest.mark.parametrize("training", [False, True])
def test_gradients_of_the_compiled_model_are_those_of_the_eager_one(training: bool) -> None:
    fields = {"coordinate_shift": 0.0, "coordinate_rescale": 1.0}
    eager, other = model(**fields).train(training), model(**fields).train(training)
    compiled = torch.compile(other, backend="aot_eager", fullgraph=True)
    for run in (eager, compiled):
        run(images(1, 8, 8), 4).patches.square().sum().backward()
    for mine, theirs in zip(other.parameters(), eager.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None)
        if mine.grad is not None:
            torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-5, rtol=1e-4)


def test_compiling_fills_no_cache() -> None:
    torch.compile(model(), backend="eager", fullgraph=True)(images(1, 8, 8))
    assert rotary.cached_patch_rope.cache_info().currsize == 0


def test_one_dynamic_graph_serves_other_sizes() -> None:
    eager = model()
    counter = CompileCounter()
    compiled = torch.compile(eager, backend=counter, fullgraph=True, dynamic=True)
    for batch, height, width in ((2, 8, 12), (3, 16, 20), (4, 12, 28)):
        assert_same(compiled(images(batch, height, width)), eager(images(batch, height, width)))
    assert counter.frame_count == 1


@pytest.mark.slow  # 40 s of a C++ compiler
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it compiles
def test_the_default_compiler_gives_the_same_numbers_and_gradients() -> None:
    eager, other = model(layers=2, **MIXING), model(layers=2, **MIXING)
    for mixing in (*eager.blocks, *other.blocks):
        nn.init.constant_(mixing.local_mixing.weight, 0.1)  # else it does nothing yet
    compiled = torch.compile(other, fullgraph=True)
    features = [run(images(2, 8, 12), 4) for run in (compiled, eager)]
    assert_same(*features)
    for outputs in features:
        outputs.patches.square().sum().backward()
    for mine, theirs in zip(other.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-4, rtol=1e-4)


def test_an_exported_program_can_be_stored_as_the_docs_say(tmp_path: Path) -> None:
    class AtBudget(nn.Module):
        def __init__(self, inner: VECA, budget: int) -> None:
            super().__init__()
            self.inner, self.budget = inner, budget

        def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
            return tuple(self.inner(pixels, self.budget)[:3])

    eager = model()
    rows, columns = torch.export.Dim("rows", min=2), torch.export.Dim("columns", min=2)
    sizes = {0: torch.export.Dim("batch"), 2: 4 * rows, 3: 4 * columns}
    program = torch.export.export(
        AtBudget(eager, 3), (images(2, 8, 12),), dynamic_shapes={"pixels": sizes}
    )
    torch.export.save(program, tmp_path / "model.pt2")
    again = torch.export.load(tmp_path / "model.pt2").module()
    assert_same(again(images(1, 16, 8)), eager(images(1, 16, 8), 3))


class WithBudget(nn.Module):
    """A model at a fixed budget: exported programs take tensors only."""

    def __init__(self, inner: VECA, budget: int | None, ffn: float | None) -> None:
        super().__init__()
        self.inner, self.budget, self.ffn = inner, budget, ffn

    def forward(self, pixels: Tensor) -> Any:
        return self.inner(pixels, self.budget, self.ffn)


@pytest.mark.parametrize(
    ("fields", "budget", "ffn", "strict"),
    [
        ({}, 3, None, False),
        ({}, None, 0.5, True),
        (MIXING, 3, None, True),
        ({"local_kernel": 3, "core_motion": "normalized"}, None, None, False),
        ({**FULL, "local_kernel": 5}, None, None, True),
    ],
)
def test_an_exported_model_runs_at_batches_and_sizes_it_was_not_exported_with(
    fields: dict[str, Any], budget: int | None, ffn: float | None, strict: bool
) -> None:
    eager = model(**fields)
    rows, columns = torch.export.Dim("rows", max=512), torch.export.Dim("columns", max=512)
    sizes = {0: torch.export.Dim("batch", max=64), 2: 4 * rows, 3: 4 * columns}
    exported = torch.export.export(
        WithBudget(eager, budget, ffn),
        (images(2, 12, 20),),
        dynamic_shapes={"pixels": sizes},
        strict=strict,
    ).module()
    for batch, height, width in ((1, 8, 8), (5, 12, 36), (2, 40, 8), (3, 20, 12)):
        pixels = images(batch, height, width)
        answer, expected = exported(pixels), eager(pixels, budget, ffn)
        assert_same(answer, expected)
        assert tuple(answer[3]) == expected.grid


def test_a_bf16_model_is_one_graph_and_exports() -> None:
    eager = model()
    eager.precision = "bf16"
    counter = CompileCounter()
    compiled = torch.compile(eager, backend=counter, fullgraph=True)
    expected = eager(images(2, 16, 24), 4)
    with torch.no_grad():
        assert_same(compiled(images(2, 16, 24), 4), eager(images(2, 16, 24), 4))
        assert counter.frame_count == 1
        program = torch.export.export(eager, (images(2, 16, 24), 4))
        found = program.module()(images(2, 16, 24), 4)
    for mine, other in zip(found[:3], expected[:3], strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine, other, atol=2e-2, rtol=2e-2)
    eager.precision = "fp32"
    assert not torch.equal(found[1], eager(images(2, 16, 24), 4).patches)
