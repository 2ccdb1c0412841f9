"""A TOML list of jobs, run one after the other; jobs whose rows are in the report are skipped.

    [defaults]
    model = "runs/tiny"
    teacher = "efficientnet-lite2"
    budgets = [8, 64]

    [[jobs]]
    task = ["knn", "logistic"]
    data = "data/pets"
    resolution = 128
    seeds = [0, 1, 2]

A field of a job that `LISTS` names may be a list; the job then stands for every combination. A job
that cannot be run, for example because its data set is missing, does not stop the others.
"""

import dataclasses
import itertools
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from veca.probe.report import add_rows, read_report
from veca.probe.rows import TASKS, Row, Task
from veca.runtime import VecaError
from veca.runtime.distributed import Ranks

LISTS = ("task", "data", "model", "protocol", "resolution", "seed")
"""Fields of which a list means several jobs."""

ALIASES = {"resolutions": "resolution", "seeds": "seed"}
"""Fields by the names of the command's flags."""

NUMBERS = ("budgets", "ffn")
"""Fields with a list of numbers within one job, whose heads are fitted together."""

TEXTS = ("baseline", "also")
"""Fields with a list of texts within one job; a single baseline needs no list."""


class SuiteError(VecaError, ValueError):
    """A suite that cannot be run."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One probe, as `veca probe TASK DATA ...` would run it."""

    task: Task

    data: str
    """As the command takes it: a folder, or NAME=FOLDER."""

    model: str

    teacher: str | None = None

    baseline: tuple[str, ...] = ()
    """Full-attention models to measure as well, in the order of tables."""

    budgets: tuple[int, ...] | None = None
    """Rising; None means the command's default, here and below."""

    ffn: tuple[float, ...] | None = None
    """Shares of the hidden units, rising."""

    resolution: int | None = None
    """Pixels."""

    protocol: str | None = None
    feature: str | None = None

    also: tuple[str, ...] = ()
    """More data sets to evaluate the same heads on, such as ImageNetV2 for ImageNet-1K."""

    seed: int = 0

    allow_partial: bool = False

    @property
    def name(self) -> str:
        """A description for people."""
        side = f" at {self.resolution} px" if self.resolution is not None else ""
        protocol = f", {self.protocol}" if self.protocol is not None else ""
        return f"{self.task} of {self.model} on {self.data}{side}{protocol}, seed {self.seed}"


FIELDS = tuple(item.name for item in dataclasses.fields(Job))


def read_suite(path: Path) -> list[Job]:
    """The jobs of a file, all combinations, each once."""
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SuiteError(f"{path} cannot be read ({error.strerror}); check the path.") from error
    except ValueError as error:
        raise SuiteError(f"{path} is not valid TOML ({error}); correct it.") from error
    entries = content.get("jobs")
    if content.keys() - {"defaults", "jobs"} or not isinstance(entries, list) or not entries:
        raise SuiteError(
            f"{path} has the entries {', '.join(content) or 'nothing'}; it needs [[jobs]] with "
            "task, data and model, and may have [defaults]."
        )
    defaults = _fields(content.get("defaults", {}), f"[defaults] of {path}")
    jobs: list[Job] = []
    for number, entry in enumerate(entries, start=1):
        where = f"job {number} of {path}"
        jobs += expand(defaults | _fields(entry, where), where)
    return list(dict.fromkeys(jobs))


def _fields(entry: object, where: str) -> dict[str, Any]:
    """The fields of an entry by their own names."""
    if not isinstance(entry, dict):
        raise SuiteError(f"{where} is {entry!r}; it needs named fields, such as task.")
    found: dict[str, Any] = {}
    for name, value in entry.items():
        own = ALIASES.get(name, name.replace("-", "_"))
        if own not in FIELDS or own in found:
            problem = "twice" if own in found else f"as the unknown field {name!r}"
            raise SuiteError(f"{where} has {own} {problem}; the fields are {', '.join(FIELDS)}.")
        found[own] = value
    return found


def expand(fields: Mapping[str, Any], where: str) -> Iterator[Job]:
    """Every combination of an entry."""
    for name in ("task", "data", "model"):
        if name not in fields:
            raise SuiteError(f"{where} has no {name}; add it there or to [defaults].")
    listed = {
        name: value if isinstance(value, list) and name in LISTS else [value]
        for name, value in fields.items()
    }
    for name, values in listed.items():
        if not values:
            raise SuiteError(f"{where}: {name} is an empty list; give at least one value.")
    for combination in itertools.product(*listed.values()):
        given = zip(listed, combination, strict=True)
        yield Job(**{name: _checked(name, value, where) for name, value in given})


def _checked(name: str, value: Any, where: str) -> Any:  # noqa: ANN401 - whatever the file has
    """A valid value of a field; numbers of a list are sorted."""
    fits, allowed = _RULES[name]
    single = name not in (*NUMBERS, *TEXTS) or (name == "baseline" and isinstance(value, str))
    values = [value] if single else value
    if not isinstance(values, list) or not values or not all(map(fits, values)):
        raise SuiteError(f"{where}: {name} is {value!r}; it must be {allowed}.")
    if name in NUMBERS:
        return tuple(sorted({float(item) if name == "ffn" else item for item in values}))
    return tuple(dict.fromkeys(values)) if name in TEXTS else value


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_seed(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1


_RULES: dict[str, tuple[Callable[[object], bool], str]] = {
    "task": (TASKS.__contains__, f"one of {', '.join(TASKS)}, or a list of them"),
    "data": (_is_text, "a folder or NAME=FOLDER, or a list of them"),
    "model": (_is_text, "the name of a model, or a list of them"),
    "teacher": (_is_text, "the name of a model"),
    "baseline": (_is_text, "the name of a model, or a list of them"),
    "budgets": (_is_count, "a list of whole numbers above 0, such as [8, 64]"),
    "ffn": (_is_share, "a list of shares up to 1, such as [0.25, 1.0]"),
    "resolution": (_is_count, "a whole number of pixels above 0, or a list of them"),
    "protocol": (_is_text, "the name of a protocol, or a list of them"),
    "feature": (_is_text, "the name of a feature"),
    "also": (_is_text, "a list of data sets, each NAME=FOLDER"),
    "seed": (_is_seed, "a whole number >= 0, or a list of them"),
    "allow_partial": (lambda value: isinstance(value, bool), "true or false"),
}
"""Which values each field may have, and a description."""


@dataclass(frozen=True, kw_only=True)
class Runner:
    """How to run jobs."""

    expect: Callable[[Job], Sequence[Mapping[str, Any]]]
    """Fields that the rows of a job will have; a ValueError says why it cannot be run. Called for
    every job before the first one runs, on rank 0 only."""

    run: Callable[[Job], Sequence[Row]]
    """Runs a job on all ranks; the rows of rank 0 count."""

    ranks: Ranks

    log: Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What happened to the jobs of a suite."""

    ran: list[Job] = field(default_factory=list)
    skipped: list[Job] = field(default_factory=list)

    failed: dict[Job, str] = field(default_factory=dict)
    """With the reason of each."""


def run_suite(jobs: Sequence[Job], folder: Path, runner: Runner) -> Outcome:
    """Run the jobs that are not done; rows are in the report before the next job begins."""
    outcome = Outcome()
    states = runner.ranks.broadcast_object(
        _states(jobs, folder, runner) if runner.ranks.is_main else None
    )
    for number, (job, (done, problem)) in enumerate(zip(jobs, states, strict=True), start=1):
        name = f"job {number} of {len(jobs)}: {job.name}"
        if problem is not None:
            outcome.failed[job] = problem
        elif done:
            runner.log(f"{name}: already done")
            outcome.skipped.append(job)
        else:
            runner.log(name)
            _run(job, folder, runner, outcome)
    return outcome


def is_done(expected: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> bool:
    """Whether a report has all rows of a job."""
    return all(
        any(all(getattr(row, name) == value for name, value in one.items()) for row in rows)
        for one in expected
    )


def _states(jobs: Sequence[Job], folder: Path, runner: Runner) -> list[tuple[bool, str | None]]:
    """For each job whether it is done, and why it cannot be run."""
    rows = read_report(folder)
    found: list[tuple[bool, str | None]] = []
    for job in jobs:
        try:
            found.append((is_done(runner.expect(job), rows), None))
        except (ValueError, OSError) as error:
            runner.log(f"{job.name}: cannot be run: {error}")
            found.append((False, str(error)))
    return found


def _run(job: Job, folder: Path, runner: Runner, outcome: Outcome) -> None:
    """Run one job and add its rows to the report, or its error to the outcome."""
    try:
        rows = runner.run(job)
    except (ValueError, OSError) as error:
        if runner.ranks.world_size > 1:
            raise  # other ranks may be waiting in the middle of the job; what is done is on disk
        runner.log(f"{job.name}: failed: {error}")
        outcome.failed[job] = str(error)
        return
    if runner.ranks.is_main:
        add_rows(rows, folder)
    outcome.ran.append(job)
