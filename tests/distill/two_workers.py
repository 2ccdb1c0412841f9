"""What each of two processes does in `test_sharding.py`; run as a module with rank and folder."""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh

from tests.distill.small_student import (
    OPTIMIZER,
    SmallStudent,
    learn,
    load_weights,
    run,
    shard,
    weights_of,
)
from veca.train.optimizers import Optimizers, clip_gradients, gradient_norm
from veca.train.parallel import whole


def main(rank: int, folder: Path) -> None:
    """Train a sharded student, store it halfway, resume it; the first process writes all down."""
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    student = SmallStudent()
    shard(student, mesh)
    optimizers = Optimizers(student, OPTIMIZER)
    run(student, optimizers, range(2))
    halfway, state, facts = weights_of(student), optimizers.tensors(), optimizers.facts()
    state = {name: tensor.clone() for name, tensor in state.items()}
    run(student, optimizers, range(2, 4))
    found = {f"end/{name}": tensor for name, tensor in weights_of(student).items()}

    again = SmallStudent(seed=1)
    shard(again, mesh)
    resumed = Optimizers(again, OPTIMIZER)
    load_weights(again, halfway)
    resumed.load(state, facts)
    run(again, resumed, range(2, 4))
    found |= {f"resumed/{name}": tensor for name, tensor in weights_of(again).items()}
    found |= {f"halfway/{name}": tensor for name, tensor in halfway.items()}
    found |= {f"state/{name}": tensor for name, tensor in state.items()}
    found |= {f"facts/{name}": torch.tensor(count) for name, count in facts.items()}
    found |= gradients(student, slice(rank, None, 2))
    if rank == 0:
        save_file({name: value.contiguous() for name, value in found.items()}, folder / "found")
    distributed.barrier()
    distributed.destroy_process_group()


def gradients(student: SmallStudent, part: slice) -> dict[str, Tensor]:
    """Norms of gradients before and after clipping, and one gradient after it."""
    learn(student, 5, part)
    before = gradient_norm(student.parameters())
    clip_gradients(student.parameters(), before, 0.01)
    after = gradient_norm(student.parameters())
    gradient = student.backbone.final_norm.weight.grad
    if gradient is None:
        raise ValueError("the final norm has no gradient")
    return {"norm/before": before, "norm/after": after, "norm/gradient": whole(gradient)}


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
