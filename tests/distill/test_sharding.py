"""Students that are spread over processes learn what whole ones learn."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from tests.distill.small_student import (
    OPTIMIZER,
    SmallStudent,
    learn,
    load_weights,
    run,
    shard,
    weights_of,
)
from tests.rules import ROOT
from veca.train.optimizers import Optimizers, clip_gradients, gradient_norm
from veca.train.parallel import local, sharded_like, whole

Found = dict[str, Tensor]


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[DeviceMesh]:
    """A group of this one process."""
    meeting = f"file://{tmp_path}/meeting"
    distributed.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What two processes wrote down."""
    folder = tmp_path_factory.mktemp("two")
    command = [sys.executable, "-m", "tests.distill.two_workers"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(folder)], cwd=ROOT, env=environment,
            stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        for process in processes:
            _, errors = process.communicate(timeout=120)
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()
    return load_file(folder / "found")


def group(found: Found, name: str) -> Found:
    """What was written down under a name."""
    start = f"{name}/"
    return {key.removeprefix(start): value for key, value in found.items() if key.startswith(start)}


def assert_close(found: Found, wanted: Found) -> None:
    """All tensors agree, by name."""
    assert set(found) == set(wanted)
    for name, tensor in wanted.items():
        assert float((found[name] - tensor).abs().max()) < 1e-6, name


def trained(steps: range) -> tuple[SmallStudent, Optimizers]:
    """A whole student after some steps in this process."""
    student = SmallStudent()
    optimizers = Optimizers(student, OPTIMIZER)
    run(student, optimizers, steps)
    return student, optimizers


@pytest.mark.workers
def test_sharded_optimizers_take_the_steps_of_whole_ones(found: Found) -> None:
    assert_close(group(found, "end"), weights_of(trained(range(4))[0]))


@pytest.mark.workers
def test_a_resumed_sharded_run_has_the_weights_of_one_that_never_stopped(found: Found) -> None:
    for name, tensor in group(found, "end").items():
        assert torch.equal(group(found, "resumed")[name], tensor), name


@pytest.mark.workers
def test_sharded_optimizers_remember_whole_tensors_as_one_process_does(found: Found) -> None:
    _, optimizers = trained(range(2))
    assert_close(group(found, "state"), optimizers.tensors())
    counts = {name: int(count) for name, count in group(found, "facts").items()}
    assert counts == optimizers.facts()


@pytest.mark.workers
def test_one_process_goes_on_where_two_stopped(found: Found) -> None:
    student = SmallStudent(seed=1)
    optimizers = Optimizers(student, OPTIMIZER)
    load_weights(student, group(found, "halfway"))
    facts = {name: int(count) for name, count in group(found, "facts").items()}
    optimizers.load(group(found, "state"), facts)
    run(student, optimizers, range(2, 4))
    assert_close(weights_of(student), group(found, "end"))


@pytest.mark.workers
def test_the_norm_of_sharded_gradients_is_that_of_whole_ones_and_can_be_clipped(
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


def test_a_student_sharded_over_one_process_takes_the_same_steps(mesh: DeviceMesh) -> None:
    sharded = SmallStudent()
    shard(sharded, mesh)
    optimizers = Optimizers(sharded, OPTIMIZER)
    run(sharded, optimizers, range(2))
    optimizers.load(optimizers.tensors(), optimizers.facts())
    run(sharded, optimizers, range(2, 3))
    student, wanted = trained(range(3))
    assert_close(weights_of(sharded), weights_of(student))
    assert_close(optimizers.tensors(), wanted.tensors())


@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Replicate()])
def test_a_tensor_spread_like_another_is_whole_again_when_gathered(
    mesh: DeviceMesh, placement: Shard | Replicate
) -> None:
    pattern = distribute_tensor(torch.zeros(5, 3), mesh, [placement])
    tensor = torch.randn(5, 3)
    spread = sharded_like(tensor, pattern)
    assert isinstance(spread, DTensor)
    assert spread.placements == (placement,)
    assert torch.equal(whole(spread), tensor)
    local(spread).zero_()
    assert not whole(spread).any()


def test_a_plain_tensor_is_its_own_whole_and_its_own_part() -> None:
    tensor = torch.randn(3)
    assert whole(tensor) is tensor
    assert local(tensor) is tensor
    assert sharded_like(tensor, torch.zeros(3)) is tensor
