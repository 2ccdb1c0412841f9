"""`veca probe`: what frozen features are worth, at every budget."""

import datetime
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import tyro

from veca.cli.flags import command_line, numbers, texts, whole_numbers
from veca.data.sets.registry import SETS
from veca.probe.feature_cache import RunContext
from veca.probe.quality import quality_of, report_files, write_quality
from veca.probe.report import COMPARISON_NAME, Draw, report_tables, write_report
from veca.probe.rows import TASKS, Row, Task
from veca.probe.run import Evaluator
from veca.probe.suite import Job, Outcome, Runner, read_suite, run_suite
from veca.runtime.device import Precision, resolve_precision
from veca.runtime.distributed import Ranks, init_distributed
from veca.weights.checkpoint import describe

HELP = """Measure frozen features: veca probe TASK DATA --model M --out DIR

  knn           classes by the nearest training pictures
  logistic      classes by logistic regression
  linear        classes by a linear layer, trained by SGD
  dense-knn     classes of pixels by the nearest labeled patches
  segmentation  classes of pixels by a linear layer on patch features
  depth         meters of pixels by a linear layer on patch features
  suite FILE    a list of such jobs; skips what is done
  quality REPORT.json ...  what reports tell of one model, as a file beside its weights

veca probe TASK --help tells the flags, and which layouts of DATA are known.
Example: veca probe knn photos --model tiny --budgets 8,64 --out probes"""

DESCRIPTION = """Measure frozen features by a probe, at every budget, by one code for all models.

DATA is a folder: train/CLASS/ and val/CLASS/ with pictures; images/, masks/, classes.txt, train.txt
and val.txt; or images/, depth/ (16-bit PNG, millimeters), train.txt and val.txt. Published sets in
their makers' layout are given as NAME=FOLDER, where NAME is one of {sets}.

The folder --out gets report.json, report.md, report.png, the fitted heads (for veca predict) and
what became of each test picture; with --baseline also comparison.json. Rows of earlier runs in the
same folder stay. Features are kept and used again.

Example: veca probe {task} data --model tiny --budgets 8,64 --out probes"""

SUITE_DESCRIPTION = """Run the jobs of a TOML or JSON file, skip those that are done, and write one
report; where jobs have baselines, comparison.json has their shares with intervals. A job that
cannot be run, such as for want of its set, does not stop the others; the exit code is then 1.

Example: veca probe suite paper.toml --out probes"""

QUALITY_DESCRIPTION = """Write what reports tell of one model into a small file for programs, to lie
beside its weights: every metric by task, set, resolution, budget and share of the hidden units,
with a 95 % interval where the cases of the report are there. Rows are found by the hash of the
weights, whether the model was measured as such, as a baseline or as a teacher.

Example: veca probe quality probes/report.json --model runs/tiny --out runs/tiny/quality.json"""

Folder = Annotated[Path, tyro.conf.arg(metavar="DIR")]
NoModel = Annotated[str | None, tyro.conf.arg(metavar="M", help_behavior_hint="(default: none)")]
Sets = Annotated[
    str | None, tyro.conf.arg(metavar="NAME=DIR,...", help_behavior_hint="(default: none)")
]
Usual = tyro.conf.arg(metavar="NAME", help_behavior_hint="")
Number = tyro.conf.arg(metavar="INT", help_behavior_hint="")
Numbers = tyro.conf.arg(metavar="A,B,...", help_behavior_hint="")


@dataclass(frozen=True, kw_only=True)
class How:
    """How a run goes about it; its numbers depend on the precision alone."""

    features: Annotated[
        Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="(default: OUT/features)")
    ] = None
    """folder in which features are kept, which several reports may share"""

    batch: int = 32
    """pictures that go through a model together, at most"""

    workers: int = 2
    """processes that decode pictures; 0 decodes in the main one"""

    device: str = "auto"
    """where models run: auto, cpu, cuda, cuda:1"""

    precision: Precision = "fp32"
    """what models compute with: fp32, bf16, or auto: bf16 where the device computes it natively"""


@dataclass(frozen=True, kw_only=True)
class TaskFlags:
    """What a task takes."""

    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    """folder of a labeled set, or NAME=FOLDER"""

    model: Annotated[str, tyro.conf.arg(metavar="M")]
    """a folder, .safetensors file, bundled or hub name, size (untrained), any teacher's name, or
    pixels"""

    out: Folder
    """folder of the report, new or to be continued"""

    teacher: NoModel = None
    """another model to measure beside it, of which it keeps a share"""

    baseline: Annotated[
        str | None, tyro.conf.arg(metavar="M,...", help_behavior_hint="(default: none)")
    ] = None
    """full-attention models to measure beside it, such as full-local,full; the first leads"""

    budgets: Annotated[str | None, Numbers] = None
    """cores to use; by default those that the model was trained with"""

    ffn: Annotated[str | None, Numbers] = None
    """shares of the hidden units, of models with nested feed-forward parts; by default all"""

    resolution: Annotated[int | None, Number] = None
    """pixels of a view, or of the short side; by default what suits model and protocol"""

    resolutions: Annotated[str | None, Numbers] = None
    """several of them"""

    seed: Annotated[int | None, Number] = None
    """of everything that is drawn; by default 0"""

    seeds: Annotated[str | None, Numbers] = None
    """several of them: the report tells mean and spread"""

    protocol: Annotated[str | None, Usual] = None
    """by default dinov3 (knn and logistic: dinov2), of a folder of one's own its small form"""

    feature: Annotated[str | None, Usual] = None
    """image, patch-mean or image+patch-mean; for dense tasks patches or patches+image; by default
    the protocol's"""

    also: Sets = None
    """further sets for the same heads, such as imagenet-v2=DIR,imagenet-real=DIR"""

    allow_partial: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """measure a set that is not whole; its rows are marked"""

    how: Annotated[How, tyro.conf.arg(name="")] = field(default_factory=How)

    def jobs(self, task: Task) -> list[Job]:
        """A job for each resolution, and for all seeds."""
        sizes = _one_or_several("resolution", self.resolution, self.resolutions, least=1)
        job = Job(
            task=task,
            data=self.data,
            model=self.model,
            teacher=self.teacher,
            baseline=() if self.baseline is None else texts("--baseline", self.baseline),
            budgets=None if self.budgets is None else whole_numbers("--budgets", self.budgets),
            ffn=None if self.ffn is None else numbers("--ffn", self.ffn),
            protocol=self.protocol,
            feature=self.feature,
            also=() if self.also is None else texts("--also", self.also),
            allow_partial=self.allow_partial,
        )
        return [replace(job, resolution=size) for size in sizes or (None,)]


@dataclass(frozen=True, kw_only=True)
class SuiteFlags:
    """What a suite takes."""

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """TOML or JSON with jobs"""

    out: Folder
    """folder of the report, new or to be continued"""

    how: Annotated[How, tyro.conf.arg(name="")] = field(default_factory=How)


@dataclass(frozen=True, kw_only=True)
class QualityFlags:
    """What a file beside the weights takes."""

    reports: Annotated[
        tuple[Path, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="REPORT.json ...", help_behavior_hint="(required)"),
    ]
    """reports, or their folders; of a number that several have, the last one counts"""

    model: Annotated[str, tyro.conf.arg(metavar="M")]
    """a folder, .safetensors file, bundled or hub name"""

    out: Annotated[Path, tyro.conf.arg(metavar="FILE")]
    """file to write, usually quality.json beside the weights"""


def probe(words: Sequence[str]) -> None:
    """Run the command on the words after its name."""
    if not words or words[0] in {"-h", "--help"}:
        print(HELP)
        if not words:
            raise SystemExit(2)
        return
    task, *rest = words
    command = command_line("probe", words)
    if task == "suite":
        described = SUITE_DESCRIPTION
        _suite(
            tyro.cli(SuiteFlags, prog="veca probe suite", description=described, args=rest), command
        )
        return
    if task == "quality":
        described = QUALITY_DESCRIPTION
        _quality(
            tyro.cli(QualityFlags, prog="veca probe quality", description=described, args=rest)
        )
        return
    if task not in TASKS:
        raise ValueError(
            f"{task!r} is no task; the tasks are {', '.join(TASKS)}, and suite and quality."
        )
    described = DESCRIPTION.format(sets=", ".join(SETS), task=task)
    flags = tyro.cli(TaskFlags, prog=f"veca probe {task}", description=described, args=rest)
    _task(task, flags, command)


def _task(task: Task, flags: TaskFlags, command: str) -> None:
    """Measure."""
    jobs = flags.jobs(task)
    seeds = _one_or_several("seed", flags.seed, flags.seeds, least=0) or (0,)
    with init_distributed(flags.how.device) as workers:
        prober = _prober(flags.out, flags.how, workers, command)
        for job in jobs:  # before a folder is made, and before anything is computed
            prober.check(job)
        with _alone_in(flags.out, workers):
            rows = [row for job in jobs for row in prober.rows(job, seeds)]
            if workers.is_main:
                _finish(rows, prober, flags.out)


def _suite(flags: SuiteFlags, command: str) -> None:
    """Run a suite."""
    jobs = read_suite(flags.file)
    with init_distributed(flags.how.device) as workers:
        prober = _prober(flags.out, flags.how, workers, command)
        with _alone_in(flags.out, workers):
            runner = Runner(
                facts=prober.facts, run=prober.rows, workers=workers, tell=prober.ctx.log
            )
            outcome = run_suite(jobs, flags.out, runner)
            if workers.is_main:
                write_report(outcome.rows, flags.out, _draw())
                _tell_outcome(outcome, flags.out)
    if outcome.failed:
        raise SystemExit(1)


def _quality(flags: QualityFlags) -> None:
    """Write what reports tell of a model."""
    rows, cases = report_files(flags.reports)
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    weights = describe(flags.model).digest
    found = quality_of(rows, cases, model=flags.model, weights=weights, date=today)
    write_quality(found, flags.out)
    sure = sum(row.interval is not None for row in found.rows)
    print(f"{flags.out}: {len(found.rows)} measurements, {sure} of them with an interval.")


def _prober(out: Path, how: How, workers: Ranks, command: str) -> Evaluator:
    """What runs jobs."""
    ctx = RunContext(
        cache=how.features or out / "features",
        ranks=workers,
        num_workers=how.workers,
        batch=how.batch,
        precision=workers.broadcast_object(resolve_precision(how.precision, workers.device)),
        log=_tell if workers.is_main else _keep_still,
        show_progress=workers.is_main,
    )
    return Evaluator(ctx=ctx, out=out, command=command)


@contextmanager
def _alone_in(out: Path, workers: Ranks) -> Iterator[None]:
    """Keep other runs out of the folder of a report; what fails, fails in all processes."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file; give a folder.")
    with workers.locked(out):
        try:
            yield
        except KeyboardInterrupt:
            if workers.is_main:
                told = "Features that were computed are kept; repeat the command to go on."
                print(told, file=sys.stderr)
            raise


def _finish(rows: Sequence[Row], prober: Evaluator, out: Path) -> None:
    """Write the report, show what this run found, and say how to use it."""
    written = write_report(rows, out, _draw())
    print(f"\n{report_tables(rows)}\n")
    whole = [path for path in written.files if path.name != COMPARISON_NAME]
    first, *others = (str(whole[0]), *(path.name for path in whole[1:]))
    print(f"{', '.join([first, *others[:-1]])} and {others[-1]} hold all rows.")
    if len(whole) < len(written.files):
        print(f"{out / COMPARISON_NAME} and report.md tell how sure shares of the baseline's are.")
    heads = [folder for role, folder in prober.heads if role == "model"]
    if heads:
        print(f"Use a head on new pictures: veca predict {shlex.quote(str(heads[-1]))} IMAGES")


def _tell_outcome(outcome: Outcome, out: Path) -> None:
    """Say what became of the jobs of a suite."""
    print(
        f"\nJobs: {len(outcome.ran)} ran, {len(outcome.skipped)} had been done before, "
        f"{len(outcome.failed)} could not be run. {out / 'report.md'} has all rows."
    )
    for job, reason in outcome.failed.items():
        print(f"Not run: {job.name}: {' '.join(reason.split())}")


def _draw() -> Draw | None:
    """What draws the plot, where matplotlib is installed."""
    try:
        from veca.analysis.figures import plot_quality  # noqa: PLC0415 - an extra
    except ImportError:
        return None
    return plot_quality


def _tell(line: str) -> None:
    """Tell at once, also into a file: progress goes another way and should not overtake."""
    print(line, flush=True)


def _keep_still(line: str) -> None:
    """Tell nobody: another process speaks."""
    del line


def _one_or_several(
    name: str, one: int | None, several: str | None, *, least: int
) -> tuple[int, ...]:
    """The values of a flag that has a plural; none where neither was given."""
    if one is not None and several is not None:
        raise ValueError(f"--{name} and --{name}s were both given; use one of them.")
    if several is not None:
        found, flag = whole_numbers(f"--{name}s", several), f"--{name}s"
    else:
        found, flag = () if one is None else (one,), f"--{name}"
    if found and min(found) < least:
        raise ValueError(f"{flag} got {min(found)}; use whole numbers from {least} on.")
    return found
