"""The benchmark: cases, rows, settings, memory, a whole run of a small model, and its report."""

import io
import itertools
import json
import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from veca.analysis import bench_report, benchmark, machine
from veca.analysis.bench_report import as_json, as_markdown, growths, notes, plot, tables, write
from veca.analysis.benchmark import (
    REFERENCES,
    BenchConfig,
    Case,
    Models,
    Report,
    Row,
    memory_rise,
    peak_bytes,
    reference_case,
    rows_of,
    run_bench,
    speedups,
)
from veca.analysis.machine import Machine, load_average, this_machine
from veca.backbone.config import BackboneConfig
from veca.runtime.timing import Effort, Timing, quartiles

TINY = BackboneConfig(layers=2, width=16, heads=1, patch_size=4, budgets=(2, 4))

MACHINE = Machine(
    processor="Made-up 3000",
    cores=2,
    threads=2,
    accelerator=None,
    memory_gb=8.0,
    system="Linux x86_64",
    python="3.11.0",
    torch="2.13.0",
    instructions="AVX2",
)

BASELINE = Case(kind="baseline")


def veca(budget: int, ffn: float = 1.0) -> Case:
    """VECA itself."""
    return Case(kind="veca", budget=budget, ffn=ffn)


def plain(budget: int) -> Case:
    """VECA unfolded."""
    return Case(kind="plain", budget=budget)


CASES = [veca(2), veca(4), veca(2, 0.25), veca(4, 0.25), plain(2), plain(4), BASELINE]


def rows(samples: Mapping[Case, Sequence[float]], resolution: int = 32) -> list[Row]:
    """Cases whose rounds took these milliseconds; one without rounds ran out of memory."""
    timings = {case: Timing(tuple(times)) for case, times in samples.items()}
    ran = {case: timing for case, timing in timings.items() if timing.samples}
    return [
        Row(
            resolution=resolution,
            patches=(resolution // 4) ** 2,
            case=case,
            ms=quartiles(timing.samples) if timing.samples else None,
            rounds=len(timing.samples),
            peak_mb=10.0 if timing.samples else None,
            gflops=1.5,
            pairs=100 * (case.budget or 9),
            attention_share=0.25,
            folded=case.kind == "veca",
            speedup=speedups(case, ran),
            note="" if timing.samples else "out of memory",
        )
        for case, timing in timings.items()
    ]


def report() -> Report:
    """Three resolutions with all cases; VECA has linear time, full attention quadratic."""
    found = []
    for side in (32, 64, 128):
        patches = (side // 4) ** 2
        factors = (1.0, 1.2, 0.5, 0.6, 1.1, 1.15, 0.015 * patches)
        found += rows({c: [f * patches] * 3 for c, f in zip(CASES, factors, strict=True)}, side)
    return Report(
        config=BenchConfig(
            model="made-up",
            backbone=TINY,
            resolutions=(32, 64, 128),
            budgets=(2, 4),
            shares=(0.25, 1.0),
            precisions=("fp32",),
        ),
        machine=MACHINE,
        command="veca bench --model made-up",
        started="2026-05-12T10:00:00+00:00",
        finished="2026-05-12T10:05:00+00:00",
        load=(0.1, 2.0),
        rows=found,
    )


SMALL = BackboneConfig(layers=2, width=32, heads=2, patch_size=4, budgets=(2, 16))
EVERY_KIND = [veca(2), veca(16), veca(2, 0.25), plain(2), BASELINE]


def config(**fields: Any) -> BenchConfig:
    """Settings that hold, with some changed."""
    good = {"model": "m", "backbone": TINY, "resolutions": (32,), "budgets": (4, 2)}
    return BenchConfig(**{**good, "shares": (0.25, 1.0), "precisions": ("fp32",), **fields})


def small_models(**fields: Any) -> Models:
    """Models that fold at the smaller of their two budgets."""
    return Models(config(**{"backbone": SMALL, "budgets": (2, 16), **fields}), 32)


@pytest.mark.parametrize(
    ("case", "name"),
    [
        (veca(8), "VECA, 8 cores"),
        (veca(1, 0.25), "VECA, 1 core, FFN 0.25"),
        (plain(8), "plain form, 8 cores"),
        (replace(BASELINE, precision="bf16"), "full attention, bf16"),
    ],
)
def test_the_name_of_a_case_says_what_runs(case: Case, name: str) -> None:
    assert case.name == name


@torch.inference_mode()
def test_each_case_encodes_with_its_own_model_and_mode() -> None:
    models = small_models(batch=2)
    images = models.images
    torch.testing.assert_close(models.call(veca(2))().patches, models.veca(images, 2).patches)
    short = models.veca(images, 2, 0.25).patches
    torch.testing.assert_close(models.call(veca(2, 0.25))().patches, short)
    assert torch.equal(models.call(BASELINE)().patches, models.baseline(images).patches)


def counted_flops(models: Models, case: Case) -> int:
    """FLOPs of one call as torch counts them."""
    call = models.call(case)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


def test_the_plain_form_runs_even_between_calls_of_the_folded_one() -> None:
    models = small_models()
    counts = [counted_flops(models, case) for case in (veca(2), plain(2), veca(2))]
    assert counts[0] == counts[2] < counts[1]


@pytest.mark.parametrize("case", EVERY_KIND)
def test_gflops_are_those_that_torch_counts_for_one_image(case: Case) -> None:
    models = small_models()
    assert models.work(case)["gflops"] * 1e9 == pytest.approx(counted_flops(models, case))


def test_attention_has_the_share_of_flops_that_ffn_embedding_and_core_steps_leave() -> None:
    models = small_models()
    for case, tokens in ((veca(2), 66), (BASELINE, 65), (plain(2), 66)):
        work = models.work(case)
        others = 2 * 64 * 32 * 48 + SMALL.layers * 6 * tokens * 32 * 85
        steps = 0 if case == BASELINE else 4 * 2 * 32
        expected = 1 - (others + steps) / (work["gflops"] * 1e9)
        assert work["attention_share"] == pytest.approx(expected)


def test_only_veca_at_a_small_budget_folds() -> None:
    models = small_models()
    folded = [models.work(case)["folded"] for case in EVERY_KIND]
    assert folded == [True, False, True, False, False]


def test_the_models_take_all_shares_and_the_baseline_has_the_same_blocks() -> None:
    models = small_models(shares=(0.5,))
    assert models.veca.config.ffn_shares == (0.5, 1.0)
    baseline = models.baseline.config
    assert (baseline.attention, baseline.prefix_tokens) == ("full", 1)
    assert baseline.architecture() == SMALL.architecture()


def test_the_seed_decides_images_and_weights_and_leaves_the_global_one_alone() -> None:
    state = torch.get_rng_state()
    one, same, other = (small_models(seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.images, same.images)
    assert not torch.equal(one.images, other.images)
    weights = [models.veca.patch_embedding.weight for models in (one, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("case", "references"),
    [
        (veca(2), (BASELINE, plain(2), veca(4), None)),
        (veca(4), (BASELINE, plain(4), None, None)),
        (veca(2, 0.25), (BASELINE, None, veca(4), None)),
        (plain(2), (BASELINE, None, None, None)),
        (BASELINE, (None, None, None, None)),
    ],
)
def test_a_case_is_compared_with_the_references_that_make_sense(
    case: Case, references: tuple[Case | None, ...]
) -> None:
    assert tuple(reference_case(case, name, CASES) for name in REFERENCES) == references


def in_bf16(case: Case) -> Case:
    """The same in half precision."""
    return replace(case, precision="bf16")


def test_references_have_the_same_precision_but_for_the_case_itself_in_fp32() -> None:
    among = [*CASES, *map(in_bf16, CASES)]
    found = [reference_case(in_bf16(veca(2)), name, among) for name in REFERENCES]
    assert found == [in_bf16(BASELINE), in_bf16(plain(2)), in_bf16(veca(4)), veca(2)]
    assert reference_case(veca(2), "baseline", among) == BASELINE
    assert reference_case(in_bf16(BASELINE), "fp32", among) == BASELINE


def test_a_ratio_above_one_means_faster_than_the_reference() -> None:
    first = rows({veca(2): [10.0], BASELINE: [25.0], plain(2): [8.0]})[0].speedup
    medians = [item and item.median for item in (first[name] for name in REFERENCES)]
    assert medians == [2.5, 0.8, None, None]


def test_time_is_that_of_one_image_and_memory_that_of_a_call() -> None:
    models = Models(config(batch=4), 32)
    (row,) = rows_of(models, {veca(2): Timing((40.0, 80.0, 60.0))}, {veca(2): 12_500_000})
    assert row.ms == (12.5, 15.0, 17.5)
    assert (row.peak_mb, row.rounds, row.patches) == (12.5, 3, 64)


def test_a_case_that_could_not_run_has_a_row_and_no_ratios() -> None:
    timings = {veca(2): Timing((1.0,)), BASELINE: Timing((), "out of memory")}
    ran, failed = rows_of(Models(config(), 32), timings, {})
    assert (failed.ms, failed.note) == (None, "out of memory")
    assert set(ran.speedup.values()) == set(failed.speedup.values()) == {None}


def test_json_has_the_same_fields_for_every_case() -> None:
    same = rows({case: [2.0] for case in CASES})
    found = [json.loads(json.dumps(row.as_json())) for row in same]
    assert len({tuple(item) for item in found}) == 1
    baseline = found[-1]
    assert (baseline["kind"], baseline["budget"]) == ("baseline", None)
    assert baseline["speedup"]["plain"] is None
    assert found[0]["speedup"]["plain"] == {
        "low": 1.0, "median": 1.0, "high": 1.0, "clear": False
    }  # fmt: skip


def test_every_budget_runs_at_every_share_and_has_a_plain_form_in_every_precision() -> None:
    assert config().cases() == CASES
    assert config(precisions=("fp32", "bf16")).cases() == CASES + [in_bf16(case) for case in CASES]


@pytest.mark.parametrize("native", [True, False])
def test_auto_is_settled_before_the_run(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: native)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert config(precisions=("auto",)).resolved == (("bf16",) if native else ("fp32",))
    assert config(precisions=("fp32", "auto")).resolved == ("fp32", "bf16")[: 1 + native]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"backbone": BackboneConfig(attention="full")}, "name a VECA model or a size"),
        ({"resolutions": ()}, "give at least one, and each of them once"),
        ({"budgets": (2, 2)}, "give at least one, and each of them once"),
        ({"resolutions": (30,)}, "image to 28 or 32"),
        ({"budgets": (5,)}, "outside 1..4"),
        ({"shares": (0.0, 1.0)}, "must lie above 0 and not above 1"),
        ({"batch": 0}, "must be >= 1"),
        ({"threads": 0}, "must be >= 1"),
        ({"device": "abacus"}, "is not available"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**fields)


def test_a_large_image_needs_at_least_the_memory_of_its_tokens() -> None:
    large = config(backbone=replace(TINY, layers=1), threads=1)
    tokens = 4 * (1024 // 4) ** 2 * TINY.width
    peak = peak_bytes(large, 1024, veca(2))
    assert peak is not None
    assert 2 * tokens < peak < 200 * tokens


def test_a_rise_is_never_negative() -> None:
    assert memory_rise(config(), 32, BASELINE) >= 0


def test_a_system_that_reports_no_memory_is_refused_with_advice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(benchmark, "peak_memory", lambda _: 0)
    with pytest.raises(ValueError, match="measure with --no-memory"):
        memory_rise(config(), 32, BASELINE)


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (BrokenProcessPool(), True),
        (MemoryError(), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("shapes differ"), False),
    ],
)
def test_too_little_memory_is_an_answer_and_other_errors_are_raised(
    error: BaseException, is_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise error

    monkeypatch.setattr(benchmark, "memory_rise", fail)
    in_a_thread = lambda workers, mp_context: ThreadPoolExecutor(workers)  # noqa: E731
    monkeypatch.setattr(benchmark, "ProcessPoolExecutor", in_a_thread)
    if is_memory:
        assert peak_bytes(config(), 32, BASELINE) is None
    else:
        with pytest.raises(type(error), match=str(error)):
            peak_bytes(config(), 32, BASELINE)


QUICK = config(resolutions=(32, 64), threads=1, effort=Effort(rounds=2, seconds=0.0))


def test_every_case_is_measured_at_every_resolution(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def too_little_for_full_attention(_: BenchConfig, side: int, case: Case) -> int | None:
        return None if (side, case) == (64, BASELINE) else 5_000_000

    monkeypatch.setattr(benchmark, "peak_bytes", too_little_for_full_attention)
    caplog.set_level(logging.INFO, "veca")
    threads = torch.get_num_threads()
    report = run_bench(QUICK, "the command")
    expected = [(side, case) for side in (32, 64) for case in CASES]
    assert [(row.resolution, row.case) for row in report.rows] == expected
    assert (report.machine.threads, report.command) == (1, "the command")
    assert torch.get_num_threads() == threads
    assert report.started <= report.finished
    assert all(line.startswith("m, ") for line in caplog.messages)
    assert len(caplog.messages) == 4
    *ran, failed = report.rows
    assert (failed.note, failed.ms, failed.peak_mb) == ("out of memory", None, None)
    for row in ran:
        assert row.ms is not None
        assert row.ms.median > 0
        assert (row.rounds, row.peak_mb) == (2, 5.0)


def test_both_precisions_run_in_turns_without_memory_if_it_is_not_wanted() -> None:
    quick = replace(QUICK, memory=False, resolutions=(32,), precisions=("fp32", "bf16"))
    report = run_bench(quick, "")
    assert len(report.rows) == 14
    for row in report.rows:
        assert (row.speedup["fp32"] is not None) == (row.case.precision == "bf16")
        assert row.peak_mb is None


def test_a_machine_in_words_names_processor_cores_threads_and_torch() -> None:
    words = str(MACHINE)
    for part in ("Made-up 3000", "2 cores", "2 threads", "AVX2", "torch 2.13.0"):
        assert part in words


def test_the_processor_is_named_as_the_system_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr(machine, "CPU_INFO", path)
    assert this_machine().processor
    path.write_text("vendor_id : X\nmodel name\t: Great CPU @ 3 GHz\n")
    assert this_machine().processor == "Great CPU @ 3 GHz"


def test_values_that_the_system_does_not_report_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> float:
        raise OSError

    monkeypatch.setattr(os, "getloadavg", refuse, raising=False)
    monkeypatch.setattr(os, "sysconf", refuse, raising=False)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert load_average() is None
    found = this_machine()
    assert (found.memory_gb, found.accelerator) == (None, None)
    assert found.cores >= 1
    assert found.threads == torch.get_num_threads()


@pytest.mark.parametrize("power", [0.0, 1.0, 1.1, 2.0])
def test_the_exponent_of_a_power_is_found(power: float) -> None:
    found = [row for side in (32, 64, 128) for row in rows({veca(2): [side ** (2 * power)]}, side)]
    (growth,) = growths(found)
    assert growth[1:4] == pytest.approx((power,) * 3)
    assert growth.resolutions == (32, 64, 128)


def test_an_exponent_is_as_uncertain_as_the_times() -> None:
    """By trying every combination of quartiles."""
    times = {32: [9.0, 10.0, 12.0], 64: [35.0, 40.0, 41.0], 128: [150.0, 160.0, 190.0]}
    found = [row for side, ms in times.items() for row in rows({veca(2): ms}, side)]
    (growth,) = growths(found)
    ends = [(row.ms.low, row.ms.high) for row in found if row.ms]
    patches = np.log([row.patches for row in found])
    slopes = [np.polyfit(patches, np.log(some), 1)[0] for some in itertools.product(*ends)]
    assert (growth.low, growth.high) == pytest.approx((min(slopes), max(slopes)))
    assert growth.low < growth.exponent < growth.high


def test_growth_that_the_noise_does_not_support_is_not_stated() -> None:
    steady = {side: {BASELINE: [side**4.0] * 3} for side in (32, 64, 128)}
    noisy = {side: {veca(2): [side**2.0, 2 * side**2.0, 9 * side**2.0]} for side in steady}
    made = replace(
        report(), rows=[row for side in steady for row in rows(steady[side] | noisy[side], side)]
    )
    assert notes(made) == [
        "From 32 to 128 px, time grows with the number of patches to the power of 2.00 [2.00, 2.00]"
        " (full attention); in brackets what the quartiles of the times allow.",
        "From 32 to 128 px, the times are too noisy for the growth of VECA, 2 cores.",
    ]
    two = replace(report(), rows=[row for row in report().rows if row.resolution < 128])
    assert notes(two) == []  # two points fit any power


def test_growth_is_fitted_over_large_images_where_there_are_three() -> None:
    times = {256: 100.0, 512: 110.0, 1024: 440.0, 2048: 1760.0}
    (growth,) = growths([row for side, ms in times.items() for row in rows({veca(2): [ms]}, side)])
    assert growth.exponent == pytest.approx(1.0)
    assert growth.resolutions == (512, 1024, 2048)


def test_growth_is_fitted_over_all_images_where_few_are_large() -> None:
    times = {128: 1.0, 256: 16.0, 512: 256.0}
    (growth,) = growths([row for side, ms in times.items() for row in rows({BASELINE: [ms]}, side)])
    assert growth.exponent == pytest.approx(2.0)
    assert growth.resolutions == (128, 256, 512)


def test_growth_leaves_out_what_could_not_run_and_few_resolutions() -> None:
    found = [row for side in (256, 512, 1024) for row in rows({BASELINE: [side**2.0]}, side)]
    assert growths([*found, *rows({BASELINE: []}, 2048)])[0].resolutions == (256, 512, 1024)
    assert growths(found[1:]) == []
    assert growths(rows({veca(2): [1.0], BASELINE: [2.0]})) == []


def lines(of: Report) -> list[str]:
    """The tables as text."""
    console = Console(file=io.StringIO(), width=120)
    for table in tables(of):
        console.print(table)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_the_tables_hold_every_case_of_each_resolution() -> None:
    found = lines(report())
    assert "32 x 32 pixels, 64 patches" in found[0]
    assert sum(line.startswith(row.case.name) for line in found for row in report().rows) >= 14
    line = next(line for line in found if line.startswith("VECA, 2 cores "))
    cells = ["64.0", "64.0", "to", "64.0", "10", "1.5", "25", "%", "0.96", "<1", "1.10", "1.20"]
    assert line.split()[3:] == [*cells, "-"]


@pytest.mark.parametrize(
    ("times", "cell"),
    [
        ([8.0, 8.0], "1.25"),
        ([12.5, 12.5], "0.80 <1"),
        ([9.0, 10.0, 11.0], "1.00 ~1"),
        ([5.0], "2.00 ~1"),  # one round shows nothing
        ([9.3, 9.0, 9.7], "1.08 ~1"),  # three of three, as in one of four trials by chance
        ([9.3, 9.0, 9.7] * 3, "1.08"),
    ],
)
def test_a_ratio_is_marked_unless_the_rounds_show_that_the_case_is_faster(
    times: list[float], cell: str
) -> None:
    found = rows({veca(2): times, BASELINE: [10.0] * len(times)})
    text = as_markdown(
        replace(report(), rows=[*found, *rows({veca(2): [1.0]}, 64), *rows({veca(2): [1.0]}, 128)])
    )
    assert f"| 25 % | {cell} | - |" in text


def test_a_case_that_could_not_run_has_dashes_for_numbers_and_a_note() -> None:
    made = replace(
        report(),
        rows=[*rows({BASELINE: []}), *rows({BASELINE: [1.0]}, 64), *rows({BASELINE: [1.0]}, 128)],
    )
    assert "| full attention | - | - | - | 1.5 |" in as_markdown(made)
    assert notes(made) == ["32 px, full attention: out of memory."]


def test_json_carries_what_a_number_must_carry() -> None:
    found = json.loads(json.dumps(as_json(report())))
    assert set(found) == {
        "schema", "veca_version", "model", "weights", "backbone", "command", "started", "finished",
        "machine", "load_average", "settings", "rows", "growth",
    }  # fmt: skip
    assert found["machine"]["processor"] == "Made-up 3000"
    assert found["settings"]["budgets"] == [2, 4]
    assert found["settings"]["rounds"] == 7
    assert found["weights"]["trained"] is False
    assert len(found["rows"]) == 21
    assert {item["name"] for item in found["growth"]} == {row.case.name for row in report().rows}


def test_markdown_has_circumstances_tables_and_growth() -> None:
    text = as_markdown(report())
    for words in (
        "untrained", "Made-up 3000", "veca bench --model made-up", "2026-05-12",
        "| VECA, 2 cores | 64.0 |", "2.00 [2.00, 2.00] (full attention)",
        "1.00 [1.00, 1.00] (VECA, 2 cores)",
    ):  # fmt: skip
        assert words in text
    lengths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert len(lengths) == 1


def test_the_name_of_a_model_is_text_in_markdown() -> None:
    made = report()
    named = replace(made, config=replace(made.config, model="<b>\udce9"))
    assert as_markdown(named).startswith("# Benchmark of &lt;b>?\n")


def test_a_busy_machine_is_reported_first() -> None:
    busy = notes(replace(report(), load=(1.5, 2.0)))
    assert "was busy when the run began (load average 1.5)" in busy[0]
    assert len(busy) == 1  # and nothing is said about growth
    for load in ((0.1, 2.0), (None, None)):
        assert not any("busy" in note for note in notes(replace(report(), load=load)))


@pytest.mark.parametrize("matplotlib", [True, False])
def test_json_and_markdown_are_written_and_the_plot_where_matplotlib_is_installed(
    matplotlib: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_report, "can_draw", lambda: matplotlib)
    files = write(report(), tmp_path / "new" / "folder")
    names = ["bench.json", "bench.md", "bench.png"]
    assert [file.name for file in files] == names[: 2 + matplotlib]
    assert json.loads(files[0].read_text())["model"] == "made-up"
    assert files[1].read_text().startswith("# Benchmark of made-up")
    assert ("No plot: it needs matplotlib" in files[1].read_text()) == (not matplotlib)


def test_the_plot_is_a_picture_with_something_on_it() -> None:
    with Image.open(io.BytesIO(plot(report()))) as picture:
        assert picture.format == "PNG"
        colors = picture.convert("RGB").getcolors(1_000_000)
    assert colors is not None
    assert len(colors) > 50
