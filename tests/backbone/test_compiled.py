"""The model through torch.compile and torch.export; without the shape hook, which trips them."""

import shutil
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
    [({}, "folded", None), (MIXING, "plain", 3)],
)
def test_one_graph_holds_the_whole_forward_pass_and_fills_no_cache(
    fields: dict[str, Any], form: Any, budget: int | None
) -> None:
    eager = model(**fields)
    eager.set_attention_form(form)
    counter = CompileCounter()
    compiled = torch.compile(eager, backend=counter, fullgraph=True)
    found = compiled(images(2, 8, 12), budget, 0.5)
    assert rotary.cached_patch_rope.cache_info().currsize == 0
    assert_same(found, eager(images(2, 8, 12), budget, 0.5))
    assert counter.frame_count == 1


def test_gradients_of_the_compiled_model_are_those_of_the_eager_one() -> None:
    fields = {"coordinate_shift": 0.0, "coordinate_rescale": 1.0}
    eager, other = model(**fields).train(), model(**fields).train()
    compiled = torch.compile(other, backend="aot_eager", fullgraph=True)
    for run in (eager, compiled):
        run(images(1, 8, 8), 4).patches.square().sum().backward()
    for mine, theirs in zip(other.parameters(), eager.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None)
        if mine.grad is not None:
            torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-5, rtol=1e-4)


def test_one_dynamic_graph_serves_other_sizes() -> None:
    eager = model(layers=1)
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


class AtBudget(nn.Module):
    """A model at a fixed budget: exported programs take tensors only."""

    def __init__(self, inner: VECA, budget: int | None, ffn: float | None = None) -> None:
        super().__init__()
        self.inner, self.budget, self.ffn = inner, budget, ffn

    def forward(self, pixels: Tensor) -> tuple[Any, ...]:
        features = self.inner(pixels, self.budget, self.ffn)
        return (*features[:3], features.grid)


def exported(module: nn.Module, strict: bool) -> torch.export.ExportedProgram:
    """The module with batch and size left open."""
    rows, columns = torch.export.Dim("rows", min=2), torch.export.Dim("columns", min=2)
    sizes = {0: torch.export.Dim("batch"), 2: 4 * rows, 3: 4 * columns}
    return torch.export.export(
        module, (images(2, 12, 20),), dynamic_shapes={"pixels": sizes}, strict=strict
    )


OTHER_SIZES = [(1, 8, 8), (5, 12, 36), (2, 40, 8), (3, 20, 12)]


@pytest.mark.parametrize(
    ("fields", "budget", "ffn", "strict"),
    [(MIXING, 3, 0.5, True), ({**FULL, "local_kernel": 5}, None, None, False)],
)
def test_an_exported_model_runs_at_batches_and_sizes_it_was_not_exported_with(
    fields: dict[str, Any], budget: int | None, ffn: float | None, strict: bool
) -> None:
    eager = model(**fields)
    program = exported(AtBudget(eager, budget, ffn), strict).module()
    for size in OTHER_SIZES:
        answer, expected = program(images(*size)), eager(images(*size), budget, ffn)
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
