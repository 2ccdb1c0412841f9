"""A model that is spread over processes is refused in words that show the way."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import distributed
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

import veca
from tests.weights.models import same_weights, trained_model
from veca.weights.format import WeightsError


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[DeviceMesh]:
    """A group of this one process."""
    meeting = f"file://{tmp_path}/meeting"
    distributed.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def test_a_sharded_model_is_refused_and_saved_as_the_error_says(
    mesh: DeviceMesh, tmp_path: Path
) -> None:
    sharded = trained_model()
    fully_shard(sharded, mesh=mesh)
    with pytest.raises(WeightsError, match=r"is a DTensor.*get_model_state_dict.*full_state_dict"):
        veca.save(sharded, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    options = StateDictOptions(full_state_dict=True)
    whole = veca.VECA(sharded.config)
    whole.load_state_dict(get_model_state_dict(sharded, options=options))
    veca.save(whole, tmp_path / "model")
    assert same_weights(veca.load(tmp_path / "model"), trained_model())
