"""Ranks agree on flags, sums and objects; a single process needs no collective."""

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.runtime.faults import held
from tests.runtime.ranks import run_ranks
from veca.runtime import distributed
from veca.runtime.distributed import VARIABLES, WARM_UP_CALLS, Ranks, RanksError, init_distributed
from veca.runtime.files import LockedError


@pytest.mark.workers
def test_two_ranks_agree_and_the_one_left_alone_reports_it(tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError(28, "disk full")

    def work(ranks: Ranks) -> None:
        rank = ranks.rank
        assert (ranks.world_size, ranks.is_main, ranks.device.type) == (2, rank == 0, "cpu")
        assert ranks.any(rank == 1)
        assert ranks.any(True)
        assert not ranks.any(False)
        own = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).t() * (rank + 1)
        assert torch.equal(ranks.all_reduce(own), torch.tensor([[3.0, 9.0], [6.0, 12.0]]))
        assert own[1, 0] == 2 * (rank + 1)
        assert ranks.all_reduce(torch.tensor(2**40 + rank)) == 2**41 + 1
        for dtype in (torch.bool, torch.bfloat16, torch.int64, torch.float64, torch.uint8):
            first = torch.tensor([[0, 1, 1], [1, 0, 1]], dtype=dtype)
            given = first if ranks.is_main else torch.zeros(2, 3, dtype=dtype)
            assert ranks.broadcast(given) is given
            assert torch.equal(given, first)
        turned = torch.full((3, 2), float(rank)).t()
        assert not ranks.broadcast(turned).any()
        learned = torch.nn.Parameter(torch.full((3, 2), float(rank)))
        assert not ranks.broadcast(learned).any()
        assert learned.requires_grad
        value = {"name": "ä", "steps": [1, 2.5, None]}
        assert ranks.broadcast_object(value if ranks.is_main else None) == value
        assert ranks.split(6) == slice(3 * rank, 3 * rank + 3)
        ranks.barrier()
        assert ranks.on_main(lambda: f"made by {rank}") == "made by 0"
        with pytest.raises(OSError, match="disk full") as caught:
            ranks.on_main(fail)
        assert caught.value.errno == 28
        if not ranks.is_main:
            os._exit(0)  # without a farewell
        with pytest.raises(RanksError, match=r"lost contact with another rank .* with --resume"):
            ranks.all_reduce(torch.ones(1))

    run_ranks(work, tmp_path)


def test_a_failed_collective_is_one_sentence() -> None:
    words = r"lost contact with another rank \(reset by peer\); .* restart with --resume"
    with pytest.raises(RanksError, match=words), distributed._lost_contact():
        raise RuntimeError("reset by peer")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As started without torchrun."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """As torchrun starts a single rank; port 0 is any that is free."""
    for name, value in zip(VARIABLES, ("0", "1", "0", "127.0.0.1", "0"), strict=True):
        monkeypatch.setenv(name, value)
    return monkeypatch


@pytest.fixture(params=["alone", "started"])
def single(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """One rank, without and with a process group."""
    request.getfixturevalue(request.param)
    with init_distributed("cpu") as joined:
        assert dist.is_initialized() == (request.param == "started")
        yield joined
    assert not dist.is_initialized()


def test_a_single_rank_agrees_with_itself(single: Ranks) -> None:
    assert (single.rank, single.world_size, single.is_main) == (0, 1, True)
    assert single.device == torch.device("cpu")
    assert (single.any(True), single.any(False)) == (True, False)
    numbers = torch.arange(6.0).reshape(2, 3).t()
    assert torch.equal(single.all_reduce(numbers), numbers)
    assert single.broadcast(numbers) is numbers
    assert torch.equal(numbers, torch.arange(6.0).reshape(2, 3).t())
    assert single.broadcast_object({"a": [1, None]}) == {"a": [1, None]}
    assert single.split(5) == slice(0, 5)
    single.barrier()


def test_a_single_process_copies_nothing(alone: None) -> None:
    numbers, value = torch.ones(3), {"a": 1}
    with init_distributed("cpu") as joined:
        assert joined.all_reduce(numbers) is numbers
        assert joined.broadcast_object(value) is value


@pytest.mark.usefixtures("started")
def test_the_group_is_left_also_after_an_error() -> None:
    for _ in range(2):
        with pytest.raises(KeyError), init_distributed("cpu"):
            raise KeyError
        assert not dist.is_initialized()


def test_every_collective_is_warmed_up_before_anything_can_fork(
    started: pytest.MonkeyPatch,
) -> None:
    began: list[tuple[str, torch.dtype]] = []
    done: list[object] = []
    for name in ("all_reduce", "broadcast"):
        started.setattr(dist, name, _noted(name, getattr(dist, name), began, done))
    with init_distributed("cpu"):
        kinds = {(name, kind) for name in ("all_reduce", "broadcast")
                 for kind in (torch.int32, torch.float32, torch.uint8)}  # fmt: skip
        assert {kind: began.count(kind) for kind in began} == dict.fromkeys(kinds, WARM_UP_CALLS)
        assert len(done) == len(began)


def _noted(
    name: str, speak: Any, began: list[tuple[str, torch.dtype]], done: list[object]
) -> Callable[..., Any]:
    """The same call, which also notes what it was given and waited for."""

    class Work:
        def __init__(self, work: Any) -> None:
            self.work = work

        def wait(self) -> None:
            self.work.wait()
            done.append(self.work)

    def call(tensor: torch.Tensor, **options: Any) -> Work:
        assert options["async_op"]  # at once, so that all threads of the group have something to do
        began.append((name, tensor.dtype))
        return Work(speak(tensor, **options))

    return call


def test_the_parts_of_a_batch_are_the_whole_batch() -> None:
    batch = list(range(12))
    for count in (1, 2, 3, 4, 6, 12):
        parts = [
            batch[Ranks(rank=rank, world_size=count, device=torch.device("cpu")).split(12)]
            for rank in range(count)
        ]
        assert [item for part in parts for item in part] == batch
        assert {len(part) for part in parts} == {12 // count}


def test_a_batch_that_does_not_split_is_refused_with_one_that_does() -> None:
    joined = Ranks(rank=1, world_size=4, device=torch.device("cpu"))
    with pytest.raises(ValueError, match=r"batch of 10 .* over 4 ranks; .* such as 12"):
        joined.split(10)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"MASTER_PORT": None}, r"'MASTER_PORT'\); start with torchrun"),
        ({"LOCAL_RANK": None}, r"'LOCAL_RANK'\); start with torchrun"),
        ({"RANK": "one"}, "'one'"),
        ({"RANK": "2"}, "rank=2, local_rank=0, world_size=1"),
        ({"LOCAL_RANK": "-1"}, "local_rank=-1"),
    ],
)
def test_an_environment_that_torchrun_did_not_make_is_refused(
    changes: dict[str, str | None], words: str, started: pytest.MonkeyPatch
) -> None:
    for name, value in changes.items():
        if value is None:
            started.delenv(name)
        else:
            started.setenv(name, value)
    with pytest.raises(RanksError, match=words), init_distributed("cpu"):
        pass


def test_an_address_in_use_is_reported(started: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        started.setenv("MASTER_PORT", str(port))
        words = rf"the 1 ranks could not connect at 127\.0\.0\.1:{port}"
        with pytest.raises(RanksError, match=words), init_distributed("cpu"):
            pass


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize("device", ["mps", "cuda:1", "abacus"])
def test_a_device_that_ranks_cannot_share_is_refused(device: str) -> None:
    with pytest.raises(RanksError, match="use 'cpu', or 'cuda'"), init_distributed(device):
        pass


def test_each_rank_has_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for available, name, expected in (
        (True, "auto", "cuda:1"),
        (True, "cuda", "cuda:1"),
        (True, "cpu", "cpu"),
        (False, "auto", "cpu"),
    ):
        monkeypatch.setattr(torch.cuda, "is_available", lambda value=available: value)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        assert distributed._rank_device(name, 1) == torch.device(expected)
    with pytest.raises(RanksError, match=r"local rank 2 has no GPU: this machine has 2; lower"):
        distributed._rank_device("cuda", 2)


@pytest.mark.gpu
@pytest.mark.usefixtures("started")
def test_gpu_and_cpu_tensors_are_both_reduced() -> None:
    with init_distributed("cuda") as joined:
        assert joined.device == torch.device("cuda", 0)
        for device in ("cpu", "cuda"):
            assert joined.all_reduce(torch.ones(2, device=device)).tolist() == [1, 1]
            assert joined.broadcast(torch.ones(2, device=device)).tolist() == [1, 1]
        assert joined.any(True)


def test_a_single_process_does_the_work_of_rank_0_itself() -> None:
    single = Ranks(device=torch.device("cpu"))
    assert single.on_main(lambda: [1, 2]) == [1, 2]
    fault = RuntimeError("a bug")

    def fail() -> None:
        raise fault

    with pytest.raises(RuntimeError) as raised:
        single.on_main(fail)
    assert raised.value is fault


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such locks")
def test_a_folder_is_created_and_locked(tmp_path: Path) -> None:
    single, folder = Ranks(device=torch.device("cpu")), tmp_path / "deep" / "one"
    with single.locked(folder):
        assert folder.is_dir()
    words = f"another process is writing into {folder}; wait"
    with held(folder), pytest.raises(LockedError, match=words), single.locked(folder):
        pytest.fail("a folder of another process was locked")
    with single.locked(folder):
        pass
