"""The benchmark: its cases, rows, settings, memory, and a whole run of a very small model."""

import io
import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.analysis.made_up import TINY, TWIN, measured, plain, rows, veca
from veca.analysis import benchmark as bench
from veca.analysis import benchmark as memory
from veca.analysis.bench_report import as_json, remarks
from veca.analysis.benchmark import (
    RIVALS,
    BenchConfig,
    Contender,
    Lineup,
    Report,
    Row,
    Setup,
    answer,
    main,
    peak_bytes,
    resident_peak,
    rival_of,
    rows_of,
    run_bench,
)
from veca.backbone.config import BackboneConfig
from veca.runtime.timing import Effort

SMALL = BackboneConfig(
    layers=2, width=32, heads=2, patch_size=4, budgets=(2, 16), ffn_shares=(0.25, 1.0)
)
SETUP = Setup(backbone=SMALL, resolution=32, batch=2)
EVERYBODY = [veca(2), veca(16), veca(2, 0.25), plain(2), TWIN]


@pytest.mark.parametrize(
    ("contender", "name"),
    [
        (veca(8), "VECA, 8 cores"),
        (veca(1, 0.25), "VECA, 1 core, FFN 0.25"),
        (plain(8), "plain form, 8 cores"),
        (TWIN, "full attention"),
    ],
)
def test_a_contender_is_called_by_what_it_is(contender: Contender, name: str) -> None:
    assert contender.name == name


@torch.inference_mode()
def test_each_contender_encodes_with_its_own_model_and_mode() -> None:
    lineup = Lineup(SETUP)
    images = lineup.images
    torch.testing.assert_close(lineup.call(veca(2))().patches, lineup.veca(images, 2).patches)
    short = lineup.veca(images, 2, 0.25).patches
    torch.testing.assert_close(lineup.call(veca(2, 0.25))().patches, short)
    assert torch.equal(lineup.call(TWIN)().patches, lineup.twin(images).patches)


@torch.inference_mode()
def test_the_plain_form_runs_even_between_calls_of_the_folded_one() -> None:
    lineup = Lineup(SETUP)
    folded, unfolded = lineup.call(veca(2)), lineup.call(plain(2))
    counts = []
    for call in (folded, unfolded, folded):
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            call()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[2] < counts[1]


@pytest.mark.parametrize("contender", EVERYBODY)
def test_gflops_are_those_that_torch_counts_for_one_image(contender: Contender) -> None:
    lineup = Lineup(replace(SETUP, batch=1))
    call = lineup.call(contender)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        counter = FlopCounterMode(display=False)
        with counter:
            call()
    assert lineup.work(contender).gflops * 1e9 == pytest.approx(counter.get_total_flops())


def test_attention_has_the_share_of_flops_that_feed_forward_parts_and_embedding_leave() -> None:
    lineup = Lineup(SETUP)
    for contender, tokens, units in ((veca(2), 66, 85), (TWIN, 65, 85), (plain(2), 66, 85)):
        work = lineup.work(contender)
        others = 2 * 64 * 32 * 48 + SMALL.layers * 6 * tokens * 32 * units
        steps = 0 if contender.kind == "twin" else 4 * 2 * 32
        expected = 1 - (others + steps) / (work.gflops * 1e9)
        assert work.attention_share == pytest.approx(expected)


def test_only_veca_at_a_small_budget_folds() -> None:
    lineup = Lineup(SETUP)
    assert [lineup.work(item).folded for item in EVERYBODY] == [True, False, True] + [False] * 2


def test_the_twin_has_the_same_blocks_and_one_class_token() -> None:
    twin = Lineup(SETUP).twin.config
    assert (twin.attention, twin.prefix_tokens, twin.ffn_shares) == ("full", 1, (1.0,))
    assert (twin.layers, twin.width, twin.heads) == (SMALL.layers, SMALL.width, SMALL.heads)


def test_the_seed_decides_images_and_weights_and_leaves_the_global_one_alone() -> None:
    state = torch.get_rng_state()
    one, same, other = (Lineup(replace(SETUP, seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(one.images, same.images)
    assert not torch.equal(one.images, other.images)
    weights = [lineup.veca.patch_embedding.weight for lineup in (one, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert torch.equal(torch.get_rng_state(), state)


TEST_BENCH_ROWS_EVERYBODY = [
    veca(2),
    veca(4),
    veca(2, 0.25),
    veca(4, 0.25),
    plain(2),
    plain(4),
    TWIN,
]


def line(found: list[Row], contender: Contender) -> Row:
    """The line of one contender."""
    return next(row for row in found if row.contender == contender)


@pytest.mark.parametrize(
    ("contender", "rivals"),
    [
        (veca(2), (TWIN, plain(2), veca(4), None)),
        (veca(4), (TWIN, plain(4), None, None)),
        (veca(2, 0.25), (TWIN, None, veca(4), None)),
        (plain(2), (TWIN, None, None, None)),
        (TWIN, (None, None, None, None)),
    ],
)
def test_each_contender_meets_the_rivals_that_make_sense(
    contender: Contender, rivals: tuple[Contender | None, ...]
) -> None:
    assert tuple(rival_of(contender, name, TEST_BENCH_ROWS_EVERYBODY) for name in RIVALS) == rivals


def in_bf16(contender: Contender) -> Contender:
    """The same in half precision."""
    return replace(contender, precision="bf16")


def test_rivals_have_the_same_precision_but_for_the_contender_itself_in_fp32() -> None:
    among = [*TEST_BENCH_ROWS_EVERYBODY, *map(in_bf16, TEST_BENCH_ROWS_EVERYBODY)]
    found = {name: rival_of(in_bf16(veca(2)), name, among) for name in RIVALS}
    same = {"twin": TWIN, "plain": plain(2), "whole": veca(4)}
    assert found == {name: in_bf16(rival) for name, rival in same.items()} | {"fp32": veca(2)}
    assert rival_of(veca(2), "twin", among) == TWIN
    assert rival_of(veca(2), "fp32", among) is None
    assert rival_of(in_bf16(TWIN), "fp32", among) == TWIN


def test_a_ratio_above_one_means_faster_than_the_rival() -> None:
    found = rows({veca(2): 10.0, TWIN: 25.0, plain(2): 8.0})
    speedups = line(found, veca(2)).speedups
    assert speedups["twin"].median == 2.5
    assert speedups["plain"].median == 0.8
    assert set(speedups) == {"twin", "plain"}


def test_time_is_that_of_one_image_and_memory_that_of_a_call() -> None:
    (row,) = rows_of(32, 64, 4, [measured(veca(2), 40.0, 80.0, 60.0, megabytes=12.5)])
    assert row.milliseconds == (12.5, 15.0, 17.5)
    assert row.peak_mb == 12.5
    assert row.rounds == 3


def test_a_contender_that_could_not_run_has_a_line_and_no_ratios() -> None:
    failed = measured(TWIN, megabytes=None, note="out of memory")
    found = rows_of(32, 64, 1, [measured(veca(2), 1.0), failed])
    row = line(found, TWIN)
    assert row.milliseconds is None
    assert row.speedups == {}
    assert row.note == "out of memory"
    assert "twin" not in line(found, veca(2)).speedups


def test_json_has_every_field_whoever_it_is() -> None:
    found = rows(dict.fromkeys(TEST_BENCH_ROWS_EVERYBODY, 2.0))
    parsed = [json.loads(json.dumps(row.as_json())) for row in found]
    assert len({tuple(item) for item in parsed}) == 1
    twin = next(item for item in parsed if item["contender"] == "twin")
    assert twin["budget"] is None
    assert twin["speedup"]["plain"] is None


def config(**fields: Any) -> BenchConfig:
    """Settings that hold, with some changed."""
    good = {"model": "m", "backbone": TINY, "resolutions": (32,), "budgets": (4, 2)}
    return BenchConfig(**{**good, "shares": (0.25, 1.0), "precisions": ("fp32",), **fields})


def test_every_budget_meets_every_share_and_has_a_plain_form() -> None:
    assert config().contenders() == [
        veca(2), veca(4), veca(2, 0.25), veca(4, 0.25), plain(2), plain(4), TWIN,
    ]  # fmt: skip


def test_every_contender_takes_part_in_every_precision() -> None:
    once = config().contenders()
    half = [replace(item, precision="bf16") for item in once]
    assert config(precisions=("fp32", "bf16")).contenders() == once + half


@pytest.mark.parametrize("native", [True, False])
def test_auto_is_settled_before_the_run(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: native)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert config(precisions=("auto",)).resolved == (("bf16",) if native else ("fp32",))
    assert config(precisions=("fp32", "auto")).resolved == ("fp32", "bf16")[: 1 + native]


def test_the_model_is_built_so_that_it_takes_the_shares() -> None:
    setup = config(shares=(0.5,), batch=3, threads=1).setup(64)
    assert setup.backbone.ffn_shares == (0.5, 1.0)
    assert (setup.resolution, setup.patches, setup.batch, setup.threads) == (64, 256, 3, 1)


def test_the_device_is_settled_before_the_run() -> None:
    assert config(device="auto").setup(32).device in {"cpu", "cuda", "mps"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"backbone": BackboneConfig(attention="full")}, "name a VECA model or a size"),
        ({"resolutions": ()}, "give at least one, and each of them once"),
        ({"budgets": (2, 2)}, "give at least one, and each of them once"),
        ({"resolutions": (30,)}, "image to 28 or 32"),
        ({"budgets": (5,)}, "outside 1..4"),
        ({"shares": (0.0, 1.0)}, "must lie above 0 and not above 1"),
        ({"batch": 0}, "whole numbers of 1 or more"),
        ({"threads": 0}, "whole numbers of 1 or more"),
        pytest.param(
            {"precisions": ("fp32", "int8")},
            "precision='int8' is unknown; use fp32",
            marks=pytest.mark.compiled,  # without the shape hook, which would refuse it first
        ),
        ({"precisions": ()}, "precisions got"),
        ({"device": "abacus"}, "is not available"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**fields)


TEST_MEMORY_SETUP = Setup(backbone=TINY, resolution=32)


def pretend(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    """Let the process that measures end in this way."""
    done = subprocess.CompletedProcess([], **{"returncode": 0, "stderr": "", **fields})
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)


def test_a_large_image_needs_at_least_the_memory_of_its_tokens() -> None:
    setup = replace(TEST_MEMORY_SETUP, resolution=1024, backbone=replace(TINY, layers=1))
    tokens = 4 * setup.patches * TINY.width
    peak = peak_bytes(setup, veca(2))
    assert peak is not None
    assert 2 * tokens < peak < 200 * tokens


def test_what_a_process_once_used_stays_in_its_peak() -> None:
    block = bytearray(b"x") * 100_000_000
    del block
    before = resident_peak()
    block = bytearray(b"x") * 100_000_000
    assert resident_peak() >= len(block)
    del block
    assert resident_peak() >= before - 1_000_000  # the kernel counts in batches


@pytest.mark.parametrize("platform", ["darwin", "linux"])
def test_without_a_process_file_the_system_is_asked(
    platform: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(memory, "PROCESS_STATUS", tmp_path / "none")
    monkeypatch.setattr(sys, "platform", platform)
    assert resident_peak() > 10_000


def test_a_system_that_does_not_tell_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(memory, "PROCESS_STATUS", tmp_path / "none")
    monkeypatch.setattr(memory, "resource", None)
    with pytest.raises(ValueError, match="does not tell peak memory; measure without it"):
        resident_peak()


def test_a_request_is_answered_with_bytes() -> None:
    request = {"setup": asdict(TEST_MEMORY_SETUP), "contender": asdict(TWIN)}
    assert json.loads(answer(json.dumps(request)))["peak_bytes"] >= 0


@pytest.mark.parametrize("code", [memory.OUT_OF_MEMORY_CODE, memory.KILLED])
def test_too_little_memory_is_an_answer(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, returncode=code)
    assert peak_bytes(TEST_MEMORY_SETUP, TWIN) is None


def test_other_failures_are_told_with_the_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, returncode=1, stderr="Traceback\n  ...\nTypeError: oh no\n")
    with pytest.raises(ChildProcessError, match="code 1: TypeError: oh no; leave memory out"):
        peak_bytes(TEST_MEMORY_SETUP, TWIN)


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_running_out_of_memory_ends_with_its_own_code(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: str) -> str:
        raise error

    monkeypatch.setattr(memory, "answer", fail)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert main() == memory.OUT_OF_MEMORY_CODE


def test_an_error_in_the_program_is_no_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> str:
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(memory, "answer", fail)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(RuntimeError, match="shapes differ"):
        main()


CONFIG = BenchConfig(
    model="tiny",
    backbone=TINY,
    resolutions=(32, 64),
    budgets=(2, 4),
    shares=(0.25, 1.0),
    threads=1,
    precisions=("fp32",),
    effort=Effort(rounds=2, seconds=0.0),
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, Contender]]:
    """Whose memory was asked for; full attention at 64 pixels has too little."""
    found: list[tuple[int, Contender]] = []

    def peak_bytes(setup: Setup, contender: Contender) -> int | None:
        found.append((setup.resolution, contender))
        return None if (setup.resolution, contender) == (64, TWIN) else 5_000_000

    monkeypatch.setattr(bench, "peak_bytes", peak_bytes)
    return found


def test_every_contender_is_measured_at_every_resolution(
    asked: list[tuple[int, Contender]],
) -> None:
    printed: list[str] = []
    threads = torch.get_num_threads()
    report = run_bench(CONFIG, "the command", printed.append)
    expected = [veca(2), veca(4), veca(2, 0.25), veca(4, 0.25), plain(2), plain(4), TWIN]
    for side in (32, 64):
        here = [row for row in report.rows if row.resolution == side]
        assert [row.contender for row in here] == expected
        assert [pair[1] for pair in asked if pair[0] == side] == [row.contender for row in here]
    assert report.machine.threads == 1
    assert torch.get_num_threads() == threads
    assert report.command == "the command"
    assert report.started <= report.finished
    assert all(line.startswith("tiny, ") for line in printed)
    check_rows(report)


def check_rows(report: Report) -> None:
    """Every line has numbers, but for the case that memory did not suffice for."""
    for row in report.rows:
        if (row.resolution, row.contender) == (64, TWIN):
            assert row.note == "out of memory"
            assert row.milliseconds is None
            assert row.peak_mb is None
        else:
            assert row.milliseconds is not None
            assert row.milliseconds.median > 0
            assert row.rounds == 2
            assert row.peak_mb == 5.0
            assert row.work.gflops > 0


def test_memory_is_left_out_if_it_is_not_wanted(asked: list[tuple[int, Contender]]) -> None:
    fields = {**vars(CONFIG), "memory": False, "resolutions": (32,), "shares": (1.0,)}
    report = run_bench(BenchConfig(**fields), "", lambda _: None)
    assert asked == []
    assert {row.peak_mb for row in report.rows} == {None}


def test_both_precisions_run_in_turns_and_their_ratio_is_told(
    asked: list[tuple[int, Contender]],
) -> None:
    fields = {**vars(CONFIG), "precisions": ("fp32", "bf16"), "resolutions": (32,)}
    report = run_bench(BenchConfig(**fields), "", lambda _: None)
    assert len(asked) == len(report.rows) == 14
    for row in report.rows:
        half = row.contender.precision == "bf16"
        assert row.as_json()["precision"] == row.contender.precision
        assert row.name.endswith(", bf16") == half
        assert ("fp32" in row.speedups) == half
    (printed,) = [remark for remark in remarks(report.rows) if "against the same in fp32" in remark]
    assert "VECA, 2 cores, bf16 (" in printed
    assert "full attention, bf16 (" in printed


def test_the_report_says_what_its_rows_say(asked: list[tuple[int, Contender]]) -> None:
    report = run_bench(CONFIG, "", lambda _: None)
    assert asked
    printed = as_json(report)
    assert {growth["name"] for growth in printed["growth"]} == {
        row.name for row in report.rows if row.contender != TWIN
    }
    assert printed["where_veca_does_not_win"]
