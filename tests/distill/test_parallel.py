"""One student over many processes, as far as one process can show it."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.distill.built import CPU, ONE, build, place_of, small_student
from tests.distill.runs import ALONE, pictures
from veca.distill.config import Efficiency
from veca.distill.parallel import compile_blocks, copy_whole, gradients_synchronized, spread
from veca.distill.student import Student
from veca.runtime.distributed import Ranks


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A group of one process."""
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1
    )
    yield
    distributed.destroy_process_group()


def gradients(student: Student) -> dict[str, Tensor | None]:
    """The gradients that there are."""
    return {name: parameter.grad for name, parameter in student.named_parameters()}


def learn(model: torch.nn.Module) -> None:
    """A backward pass with the smaller budget."""
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8, generator=draw)
    (said,) = model(images, 2, 1.0)
    (said.image.square().sum() + said.patches.square().sum()).backward()


def test_a_student_alone_is_called_as_it_is() -> None:
    student = small_student()
    assert spread(student, ONE, shard=False) is student


def test_one_process_cannot_shard_and_is_told_how_to_start_more() -> None:
    with pytest.raises(ValueError, match=r"but there is one; start with torchrun --nproc-per-node"):
        spread(small_student(), ONE, shard=True)


@pytest.mark.parametrize("now", [False, True])
def test_a_student_alone_learns_within_either_way(now: bool) -> None:
    student, plain = small_student().eval(), small_student().eval()
    learn(plain)
    with gradients_synchronized(student, now):
        learn(student)
    for name, gradient in gradients(student).items():
        other = plain.get_parameter(name).grad
        assert (gradient is None) == (other is None)
        if gradient is not None and other is not None:
            assert torch.equal(gradient, other)


@pytest.mark.usefixtures("group")
def test_copies_exchange_gradients_when_told_to_and_do_not_miss_unused_cores() -> None:
    student = small_student().eval()
    model = spread(student, Ranks(world_size=2, device=CPU), shard=False)
    assert isinstance(model, DistributedDataParallel)
    assert model.module is student
    for now in (False, True, True):  # the last one would wait for cores that had no gradient
        with gradients_synchronized(model, now):
            assert model.require_backward_grad_sync == now
            learn(model)
    assert model.require_backward_grad_sync
    assert gradients(student)["backbone.core_bank.tokens.1"] is None


@pytest.mark.usefixtures("group")
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")  # of views, which nobody changes
def test_a_sharded_student_exchanges_gradients_when_told_to() -> None:
    student = small_student().eval()
    fully_shard(student, mesh=init_device_mesh("cpu", (1,)))
    assert isinstance(student, FSDPModule)
    for now in (False, True):
        with gradients_synchronized(student, now):
            learn(student)
    assert gradients(student)["backbone.final_norm.bias"] is not None


def test_a_tensor_is_filled_from_a_whole_one_in_its_own_type() -> None:
    target = torch.nn.Parameter(torch.zeros(3, dtype=torch.float32))
    copy_whole(target, torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    assert target.tolist() == [1.0, 2.0, 3.0]
    assert target.dtype == torch.float32
    assert target.requires_grad


def test_nothing_is_compiled_unless_asked_for() -> None:
    student = small_student()
    compile_blocks(student, Efficiency(), graphs=99)
    assert all(block._compiled_call_impl is None for block in student.backbone.blocks)


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's own, which it means to hide
def test_compiled_blocks_learn_the_same(tmp_path: Path) -> None:
    images = pictures(tmp_path / "images", 12)
    found = []
    for chosen in (False, True):
        efficiency = dataclasses.replace(ALONE, compile=chosen, compile_backend="eager")
        place, drawn = place_of(tmp_path / "run"), (1.0, 0.0)  # one graph is enough
        run = build(images, place, efficiency, budget_weights=drawn, share_weights=drawn)
        compiled = [block._compiled_call_impl for block in run.training.student.backbone.blocks]
        assert all((call is not None) == chosen for call in compiled)
        found.append([report.row["loss"] for report in run.advance(2)])
    assert found[1] == pytest.approx(found[0], rel=1e-5)


@pytest.mark.compiled
def test_there_is_room_for_a_graph_of_every_budget_and_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = torch._dynamo.config
    monkeypatch.setattr(settings, "recompile_limit", 8)
    monkeypatch.setattr(settings, "accumulated_recompile_limit", 256)
    student, efficiency = small_student(), Efficiency(compile=True, compile_backend="eager")
    compile_blocks(student, efficiency, graphs=3)
    assert (settings.recompile_limit, settings.accumulated_recompile_limit) == (8, 256)
    compile_blocks(student, efficiency, graphs=200)
    assert (settings.recompile_limit, settings.accumulated_recompile_limit) == (200, 400)
