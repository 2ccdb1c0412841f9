"""`veca probe`: evaluate frozen features at every budget."""

import datetime
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from veca.cli.flags import command_line, numbers, read_flags, texts, whole_numbers
from veca.data.sets.registry import SETS
from veca.probe.feature_cache import ProbeContext
from veca.probe.heads import HEADS_FOLDER
from veca.probe.report import Draw, report_tables, write_report
from veca.probe.rows import TASKS, Row, Section, Task
from veca.probe.run import Evaluator, Job
from veca.runtime import NO_PLOT
from veca.runtime.device import Precision, resolve_precision
from veca.runtime.distributed import init_distributed
from veca.runtime.logging import log_to_console
from veca.weights.checkpoint import model_info
from veca.weights.hub import DEFAULT_MODEL

HELP = """Evaluate frozen features: veca probe TASK DATA --out DIR

  knn           image classes by the nearest training images
  logistic      image classes by logistic regression
  linear        image classes by a linear layer, trained by SGD
  dense-knn     pixel classes by the nearest labeled patches
  segmentation  pixel classes by a linear layer on patch features
  depth         meters of each pixel by a linear layer on patch features
  suite FILE    a TOML list of such jobs; skips what is done
  quality REPORT.json ...  all numbers of one model, in a file beside its weights

veca probe TASK --help lists the flags and the supported layouts of DATA.
Example: veca probe knn photos --budgets 8,64 --out probes"""

DESCRIPTION = """Evaluate frozen features by a probe at every budget, with the same code for all
models.

DATA is a folder: train/CLASS/ and val/CLASS/ with images, or CLASS/ alone, of which a fifth is held
out; images/, masks/, classes.txt, train.txt
and val.txt; or images/, depth/ (16-bit PNG, millimeters), train.txt and val.txt. Published datasets
in their original layout are given as NAME=FOLDER, where NAME is one of {sets}.

The folder --out gets the report (report.html for a browser, report.md, report.json), the fitted
heads (for veca predict) and results for each test image; with --baseline also comparison.json. Rows
of earlier runs in the same folder stay. Features are cached.

Example: veca probe {task} data --budgets 8,64 --out probes"""

PAGE = "report.html"

SUITE_DESCRIPTION = """Run the jobs of a TOML file, skip those that are done, and write one report;
with baselines, comparison.json has the models' numbers relative to theirs, with intervals. A job
that cannot be run, for example without its dataset, does not stop the others; the exit code is
then 1.

Example: veca probe suite paper.toml --out probes"""

QUALITY_DESCRIPTION = """Write all numbers of one model in some reports to a small file for
programs, to lie beside its weights: every metric by task, dataset, resolution, budget and share
of the hidden units, with a 95 % interval where per-image results exist. Rows are found by the hash
of the weights, whether the model was measured as such, as a baseline or as a teacher.

Example: veca probe quality probes/report.json --model runs/tiny --out runs/tiny/quality.json"""

Folder = Annotated[Path, tyro.conf.arg(metavar="DIR")]
NoModel = Annotated[str | None, tyro.conf.arg(metavar="M", help_behavior_hint="(default: none)")]
Name = Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="")]
Number = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")]
Numbers = Annotated[str | None, tyro.conf.arg(metavar="A,B,...", help_behavior_hint="")]


@dataclass(frozen=True, kw_only=True)
class RunFlags:
    """Flags of how to run; all but the precision leave the numbers as they are."""

    features: Annotated[
        Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="(default: OUT/features)")
    ] = None
    """folder of cached features, which several reports may share"""
    batch: int = 32
    """maximum number of images in a batch"""
    workers: int = 2
    """processes that decode images; 0 decodes in the main one"""
    device: str = "auto"
    """where models run: auto, cpu, cuda, cuda:1"""
    precision: Precision = "fp32"
    """precision of models: fp32, bf16, or auto: bf16 where the device supports it natively"""


COMMON = (
    "data", "model", "out", "teacher", "baseline", "budgets", "resolution", "seeds", "allow_partial"
)  # fmt: skip
"""Flags of a task that --help shows."""


@dataclass(frozen=True, kw_only=True)
class TaskFlags:
    """Flags of a task."""

    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    """folder of a labeled dataset, or NAME=FOLDER"""
    model: Annotated[str, tyro.conf.arg(metavar="M")] = DEFAULT_MODEL
    """a folder, .safetensors file, bundled or hub name, size (untrained), any teacher's name, or
    pixels"""
    out: Folder
    """folder of the report, new or to be continued"""
    teacher: NoModel = None
    """another model to evaluate, of whose numbers the report shows the retained share"""
    baseline: Annotated[
        str | None, tyro.conf.arg(metavar="M,...", help_behavior_hint="(default: none)")
    ] = None
    """full-attention models to compare with, such as full-local,full; the first one comes first"""
    budgets: Numbers = None
    """cores to use; by default those that the model was trained with"""
    ffn: Numbers = None
    """shares of the hidden units, of models with nested feed-forward parts; by default all"""
    resolution: Number = None
    """pixels of a view, or of the short side; the default depends on model and protocol"""
    resolutions: Numbers = None
    """several resolutions"""
    seed: Number = None
    """of all random draws; by default 0"""
    seeds: Numbers = None
    """several seeds, such as 0,1,2: the report shows mean and standard deviation"""
    protocol: Name = None
    """by default dinov3 (knn and logistic: dinov2), for your own folders its small form"""
    feature: Name = None
    """image, patch-mean or image+patch-mean; for dense tasks patches or patches+image; by default
    the protocol's"""
    also: Annotated[
        str | None, tyro.conf.arg(metavar="NAME=DIR,...", help_behavior_hint="(default: none)")
    ] = None
    """more datasets for the same heads, such as imagenet-v2=DIR,imagenet-real=DIR"""
    allow_partial: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """evaluate on an incomplete dataset; its rows are marked"""
    run: Annotated[RunFlags, tyro.conf.arg(name="")] = field(default_factory=RunFlags)

    def jobs(self, task: Task) -> list[Job]:
        """A job for each resolution, and for all seeds."""
        parsers: Mapping[str, Callable[[str, str], Any]] = {
            "baseline": texts, "budgets": whole_numbers, "ffn": numbers, "also": texts
        }  # fmt: skip
        lists = {
            name: parse(f"--{name}", text)
            for name, parse in parsers.items()
            if (text := getattr(self, name)) is not None
        }
        same = ("data", "model", "teacher", "protocol", "feature", "allow_partial")
        job = Job(task=task, **{name: getattr(self, name) for name in same}, **lists)
        sizes = _one_or_several("resolution", self.resolution, self.resolutions)
        return [replace(job, resolution=size) for size in sizes or (None,)]


@dataclass(frozen=True, kw_only=True)
class SuiteFlags:
    """Flags of a suite."""

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """TOML file with jobs"""
    out: Folder
    """folder of the report, new or to be continued"""
    run: Annotated[RunFlags, tyro.conf.arg(name="")] = field(default_factory=RunFlags)


def probe(words: Sequence[str]) -> None:
    """Run the command with these arguments."""
    if not words or words[0] in {"-h", "--help", "--help-all"}:
        print(HELP)
        if not words:
            raise SystemExit(2)
        return
    task, *rest = words
    prog, command = f"veca probe {task}", command_line("probe", words)
    if task == "suite":
        _suite(read_flags(SuiteFlags, rest, prog=prog, description=SUITE_DESCRIPTION), command)
    elif task == "quality":
        read_flags(_quality, rest, prog=prog, description=QUALITY_DESCRIPTION)
    elif task in TASKS:
        described = DESCRIPTION.format(sets=", ".join(SETS), task=task)
        flags = read_flags(TaskFlags, rest, prog=prog, description=described, common=COMMON)
        _task(task, flags, command)
    else:
        raise ValueError(f"{task!r} is not a task; use {', '.join(TASKS)}, suite or quality.")


def _task(task: Task, flags: TaskFlags, command: str) -> None:
    """Evaluate on one task, write the report, and print the tables of this run."""
    jobs, out = flags.jobs(task), flags.out
    seeds = _one_or_several("seed", flags.seed, flags.seeds) or (0,)
    with _evaluator(flags, command, jobs) as evaluator:
        rows = [row for job in jobs for row in evaluator.run_job(job, seeds)]
        if not evaluator.ctx.ranks.is_main:
            return
        drawn = _write(rows, out)
    print(f"\n{report_tables(rows)}\n")
    print(f"Report: {out / PAGE} (also as .md and .json)")
    if not drawn:
        print(NO_PLOT)
    heads = [path for role, path in evaluator.heads if role == "model"]
    if heads:
        single = len(list((out / HEADS_FOLDER).glob("*.safetensors"))) == 1
        given = shlex.quote(str(out if single else heads[-1]))
        print(f"Predict on new images: veca predict {given} IMAGES")


def _suite(flags: SuiteFlags, command: str) -> None:
    """Run a suite."""
    from veca.probe.suite import read_suite, run_suite  # noqa: PLC0415 - of this subcommand

    jobs = read_suite(flags.file)
    with _evaluator(flags, command) as evaluator:
        outcome = run_suite(jobs, flags.out, evaluator)
        if evaluator.ctx.ranks.is_main:
            _write([], flags.out)
            print(
                f"\nJobs: {len(outcome.ran)} ran, {len(outcome.skipped)} were already done, "
                f"{len(outcome.failed)} failed. Report: {flags.out / PAGE}"
            )
            for job, reason in outcome.failed.items():
                print(f"Failed: {job.name}: {' '.join(reason.split())}")
    if outcome.failed:
        raise SystemExit(1)


def _quality(
    reports: Annotated[
        tuple[Path, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="REPORT.json ...", help_behavior_hint="(required)"),
    ],
    /,
    *,
    model: Annotated[str, tyro.conf.arg(metavar="M")],
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")],
) -> None:
    """Write all numbers of a model.

    Args:
        reports: reports, or their folders; if several have the same number, the last one counts
        model: a folder, .safetensors file, bundled or hub name
        out: file to write, usually quality.json beside the weights
    """
    from veca.probe.quality import quality_of, report_files, write_quality  # noqa: PLC0415 - same

    rows, folders = report_files(reports)
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    weights = model_info(model).digest
    found = quality_of(rows, folders, model=model, weights=weights, date=today)
    write_quality(found, out)
    known = sum(row.interval is not None for row in found.rows)
    print(f"{out}: {len(found.rows)} measurements, {known} of them with an interval.")


@contextmanager
def _evaluator(
    flags: TaskFlags | SuiteFlags, command: str, jobs: Sequence[Job] = ()
) -> Iterator[Evaluator]:
    """An evaluator in a locked folder; `jobs` are checked before the folder is created."""
    run, out = flags.run, flags.out
    with init_distributed(run.device) as ranks, log_to_console(ranks.is_main):
        ctx = ProbeContext(
            cache=run.features or out / "features",
            ranks=ranks,
            num_workers=run.workers,
            batch=run.batch,
            precision=ranks.broadcast_object(resolve_precision(run.precision, ranks.device)),
            show_progress=ranks.is_main,
        )
        evaluator = Evaluator(ctx=ctx, out=out, command=command)
        for job in jobs:
            evaluator.check(job)
        if out.exists() and not out.is_dir():
            raise ValueError(f"--out {out} is a file; give a folder.")
        with ranks.locked(out):
            try:
                yield evaluator
            except KeyboardInterrupt:
                if ranks.is_main:
                    print("Features are cached; repeat the command to continue.", file=sys.stderr)
                raise


def _write(rows: Sequence[Row], out: Path) -> bool:
    """Add rows to the report and write its page; whether with charts, which need matplotlib."""
    plot: Draw | None = None
    chart: Callable[[Section], bytes | None] | None = None
    with suppress(ImportError):  # matplotlib is an extra
        from veca.analysis.figures import plot_quality, plot_time  # noqa: PLC0415

        plot, chart = plot_quality, plot_time
    write_report(rows, out, plot)
    # Here, when the numbers are safe, since a run does not need it.
    from veca.analysis.probe_page import write_page  # noqa: PLC0415

    write_page(out, chart)
    return plot is not None


def _one_or_several(name: str, one: int | None, several: str | None) -> tuple[int, ...]:
    """The values of a flag that has a plural; empty if neither was given."""
    if one is not None and several is not None:
        raise ValueError(f"--{name} and --{name}s were both given; use one of them.")
    if several is not None:
        return whole_numbers(f"--{name}s", several)
    return () if one is None else (one,)
