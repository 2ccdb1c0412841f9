"""DDP and sharding on two ranks, gradient synchronization, and the weight average."""

import threading
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import veca
from tests.runtime.ranks import run_ranks
from veca.distill.student import Adaptor
from veca.runtime.distributed import Ranks
from veca.train.optimizers import OptimizerConfig, Optimizers, clip_gradients, gradient_norm
from veca.train.parallel import (
    EMA,
    compile_blocks,
    full_tensor,
    gradients_synchronized,
    load_full,
    local_tensor,
    shard_like,
    wrap_student,
)

CPU = torch.device("cpu")
CONFIG = veca.BackboneConfig(
    layers=2, width=32, heads=2, budgets=(4, 8), coordinate_shift=0.0, coordinate_rescale=1.0
)
IMAGES = 4

OPTIMIZER = OptimizerConfig(eps=1e-3)
"""With a smaller eps AdamW takes full steps along gradients that are rounding errors."""

Found = dict[str, Tensor]


class SmallStudent(nn.Module):
    """A backbone with an adaptor; initial weights depend on the seed alone."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.backbone = veca.VECA(CONFIG)
        self.adaptor = Adaptor(32, 24, 40, "linear")

    def forward(self, images: Tensor, budget: int) -> Tensor:
        """A loss."""
        image, patches = self.adaptor(self.backbone(images, budget))
        return image.square().mean() + (patches - 1).square().mean()


def learn(student: nn.Module, step: int, part: slice = slice(None)) -> None:
    """Gradients of a step on some of its images; budgets change from step to step."""
    images = torch.randn(IMAGES, 3, 32, 32, generator=torch.Generator().manual_seed(step))
    student(images[part], (4, 8)[step % 2]).backward()


def run(student: SmallStudent, optimizers: Optimizers, steps: range) -> None:
    """Some steps at a falling rate."""
    for step in steps:
        learn(student, step)
        optimizers.step(1e-2 / (step + 1))
        optimizers.zero_grad()


def trained(steps: range) -> tuple[SmallStudent, Optimizers]:
    """A student after some steps in this process."""
    student = SmallStudent()
    optimizers = Optimizers(student, OPTIMIZER)
    run(student, optimizers, steps)
    return student, optimizers


def weights_of(student: nn.Module) -> Found:
    """Copies of all weights, whole."""
    return {name: full_tensor(value.detach()).clone() for name, value in student.named_parameters()}


def load_weights(student: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load whole weights into a student that may be sharded."""
    for name, value in student.named_parameters():
        load_full(value, weights[name])


def assert_same(found: Found, expected: Found, atol: float = 0) -> None:
    """All tensors agree, to the bit by default."""
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


# Two ranks that share a student


def train_sharded(ranks: Ranks, folder: Path) -> None:
    """Train a sharded student, store it halfway and resume it; rank 0 saves everything."""
    student = SmallStudent()
    wrap_student(student, list(student.backbone.blocks), ranks, shard=True)
    optimizers = Optimizers(student, OPTIMIZER)
    run(student, optimizers, range(2))
    halfway, state = weights_of(student), deepcopy(optimizers.state_dict())
    run(student, optimizers, range(2, 4))
    found = {f"end/{name}": tensor for name, tensor in weights_of(student).items()}

    again = SmallStudent(seed=1)
    wrap_student(again, list(again.backbone.blocks), ranks, shard=True)
    resumed = Optimizers(again, OPTIMIZER)
    load_weights(again, halfway)
    resumed.load_state_dict(state)
    run(again, resumed, range(2, 4))
    found |= {f"resumed/{name}": tensor for name, tensor in weights_of(again).items()}
    found |= {f"halfway/{name}": tensor for name, tensor in halfway.items()}
    found |= {f"state/{name}": tensor for name, tensor in state.items()}

    learn(student, 5, slice(ranks.rank, None, 2))
    norm = gradient_norm(student.parameters())
    found["norm/before"] = norm
    clip_gradients(student.parameters(), norm, 0.01)
    found["norm/after"] = gradient_norm(student.parameters())
    gradient = student.backbone.final_norm.weight.grad
    assert gradient is not None
    found["norm/gradient"] = full_tensor(gradient)
    if ranks.is_main:
        save_file({name: value.contiguous() for name, value in found.items()}, folder / "found")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What two ranks computed."""
    folder = tmp_path_factory.mktemp("two")
    run_ranks(lambda ranks: train_sharded(ranks, folder), folder)
    return load_file(folder / "found")


def group(found: Found, name: str) -> Found:
    """What was saved under a prefix."""
    start = f"{name}/"
    return {key.removeprefix(start): value for key, value in found.items() if key.startswith(start)}


@pytest.mark.workers
def test_a_sharded_student_equals_a_whole_one_and_resumes_exactly(found: Found) -> None:
    assert_same(group(found, "end"), weights_of(trained(range(4))[0]), atol=1e-6)
    assert_same(group(found, "resumed"), group(found, "end"))
    assert_same(group(found, "state"), trained(range(2))[1].state_dict(), atol=1e-6)


@pytest.mark.workers
def test_one_rank_continues_where_two_stopped(found: Found) -> None:
    student = SmallStudent(seed=1)
    optimizers = Optimizers(student, OPTIMIZER)
    load_weights(student, group(found, "halfway"))
    optimizers.load_state_dict(group(found, "state"))
    run(student, optimizers, range(2, 4))
    assert_same(weights_of(student), group(found, "end"), atol=1e-6)


@pytest.mark.workers
def test_sharded_gradients_are_clipped_like_whole_ones(
    found: Found,
) -> None:
    student = SmallStudent()
    load_weights(student, group(found, "end"))
    learn(student, 5)
    norm = gradient_norm(student.parameters())
    torch.testing.assert_close(found["norm/before"], norm, rtol=1e-5, atol=0)
    assert float(found["norm/after"]) == pytest.approx(0.01, rel=1e-5)
    clip_gradients(student.parameters(), norm, 0.01)
    gradient = student.backbone.final_norm.weight.grad
    torch.testing.assert_close(found["norm/gradient"], gradient, rtol=1e-4, atol=1e-8)


# A group of this process alone


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[DeviceMesh]:
    """A group of one process."""
    meeting = f"file://{tmp_path}/meeting"
    distributed.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def test_one_rank_needs_no_wrapper_and_cannot_shard() -> None:
    student, alone = SmallStudent(), Ranks(device=CPU)
    blocks = list(student.backbone.blocks)
    assert wrap_student(student, blocks, alone, shard=False) is student
    with pytest.raises(ValueError, match="got one; start with torchrun --nproc-per-node"):
        wrap_student(student, blocks, alone, shard=True)


@pytest.mark.usefixtures("mesh")
def test_ddp_reduces_gradients_when_asked_to_and_allows_unused_cores() -> None:
    student = SmallStudent().eval()
    model = wrap_student(student, [], Ranks(world_size=2, device=CPU), shard=False)
    assert isinstance(model, DistributedDataParallel)
    assert model.module is student
    for now in (False, True, True):  # the last one would wait for cores without a gradient
        with gradients_synchronized(model, now):
            assert model.require_backward_grad_sync == now
            learn(model, 0)
    assert model.require_backward_grad_sync
    assert student.get_parameter("backbone.core_bank.tokens.1").grad is None


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")  # of views, which nobody changes
def test_fsdp_reduces_gradients_when_asked_to(mesh: DeviceMesh) -> None:
    student = SmallStudent().eval()
    fully_shard(student, mesh=mesh)
    assert isinstance(student, FSDPModule)
    for now in (False, True):
        with gradients_synchronized(student, now):
            learn(student, 0)
    assert student.backbone.final_norm.bias.grad is not None


@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Replicate()])
def test_a_sharded_tensor_is_gathered_whole(mesh: DeviceMesh, placement: Shard | Replicate) -> None:
    like = distribute_tensor(torch.zeros(5, 3), mesh, [placement])
    tensor = torch.randn(5, 3)
    sharded = shard_like(tensor, like)
    assert isinstance(sharded, DTensor)
    assert sharded.placements == (placement,)
    assert torch.equal(full_tensor(sharded), tensor)
    local_tensor(sharded).zero_()
    assert not full_tensor(sharded).any()


def test_plain_tensors_are_not_sharded() -> None:
    tensor = torch.randn(3)
    assert full_tensor(tensor) is tensor
    assert local_tensor(tensor) is tensor
    assert shard_like(tensor, torch.zeros(3)) is tensor
    target = nn.Parameter(torch.zeros(3, dtype=torch.float32))
    load_full(target, torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    assert target.tolist() == [1.0, 2.0, 3.0]
    assert target.dtype == torch.float32
    assert target.requires_grad


@pytest.mark.compiled
def test_compiling_allows_a_graph_per_budget_and_size() -> None:
    limits = torch._dynamo.config
    blocks = list(SmallStudent().backbone.blocks)
    with limits.patch(recompile_limit=8, accumulated_recompile_limit=256):
        compile_blocks(blocks, "eager", graphs=3)
        assert (limits.recompile_limit, limits.accumulated_recompile_limit) == (8, 256)
        compile_blocks(blocks, "eager", graphs=200)
        assert (limits.recompile_limit, limits.accumulated_recompile_limit) == (200, 400)


# The average of the weights


def change(student: nn.Module, step: int) -> None:
    """Change all weights a little, differently at every step."""
    draw = torch.Generator().manual_seed(step)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=draw))


def test_the_average_follows_its_formula() -> None:
    student, decay = SmallStudent(), 0.4
    ema = EMA(student, decay)
    history = [weights_of(student)]
    for step in range(1, 11):
        change(student, step)
        ema.update()
        history.append(weights_of(student))

    # Up to the fourth update less than the decay remains.
    decays = [min(decay, (1 + step) / (10 + step)) for step in range(1, 11)]
    assert [value < decay for value in decays] == [True] * 4 + [False] * 6
    for name, found in ema.state_dict().items():
        expected = history[0][name].double()
        for value, weights in zip(decays, history[1:], strict=True):
            expected = value * expected + (1 - value) * weights[name].double()
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


def test_the_average_is_applied_within_a_block() -> None:
    student = SmallStudent()
    ema, start = EMA(student, 0.9), weights_of(student)
    change(student, 1)
    own = weights_of(student)
    with ema.applied():
        assert_same(weights_of(student), start)
        assert torch.is_grad_enabled()
    assert_same(weights_of(student), own)
    with pytest.raises(threading.BrokenBarrierError), ema.applied():
        raise threading.BrokenBarrierError
    assert_same(weights_of(student), own)


def test_a_stored_average_continues_exactly() -> None:
    student, other = SmallStudent(), SmallStudent(seed=1)
    ema, continued = EMA(student, 0.9), EMA(other, 0.9)
    for step in range(1, 4):
        change(student, step)
        ema.update()
    continued.load_state_dict(deepcopy(ema.state_dict()), ema.updates)
    load_weights(other, weights_of(student))
    for one, moved in ((ema, student), (continued, other)):
        change(moved, 4)
        one.update()
    assert continued.updates == 4
    assert_same(continued.state_dict(), ema.state_dict())
