"""A list of jobs in a TOML file.

A list of probes in a file, run one after the other; what is done is not done again.

The file is TOML or JSON: `jobs`, and `defaults` for fields that they leave out. A field of a job
that `LISTS` names may be a list; the job then stands for every combination.

    [defaults]
    model = "runs/tiny"
    teacher = "efficientnet-lite2"
    budgets = [8, 64]

    [[jobs]]
    task = ["knn", "logistic"]
    data = "data/pets"
    resolution = 128
    seed = [0, 1, 2]

A finished job leaves `jobs/<identity>.json` with its rows. Its identity covers all that decides its
numbers: its fields, the version of veca, and what the caller knows of weights and pictures.

Runs the jobs of a suite, skips those that are done, and tells which could not be run.

A job that cannot be run, such as for want of its set, does not stop the others: a suite may list
all sets of the paper and is run with those that are present.
"""

import dataclasses
import difflib
import hashlib
import itertools
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from veca.probe.rows import TASKS, Row, Task, merge_rows, row_from_json
from veca.runtime import VERSION, VecaError
from veca.runtime.distributed import Ranks
from veca.runtime.files import dumps_strict, make_folder, write_atomic

LISTS = ("task", "data", "model", "protocol", "resolution", "seed")
"""Fields of which a list means several jobs."""

PLURALS = {
    "resolutions": "resolution", "seeds": "seed", "tasks": "task", "models": "model",
    "baselines": "baseline",
}  # fmt: skip
"""Other names of these fields, since a list reads better so."""

NUMBERS = ("budgets", "ffn")
"""Fields that hold a list of numbers within one job, whose heads train together."""

TEXTS = ("baseline", "also")
"""Fields that hold a list of texts within one job; a single baseline needs no list."""


class SuiteError(VecaError, ValueError):
    """A suite that cannot be run: which job and field, what was got, what is allowed."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One probe, as `veca probe TASK DATA ...` would run it."""

    task: Task

    data: str
    """As the command takes it: a folder, or NAME=FOLDER."""

    model: str

    teacher: str | None = None

    baseline: tuple[str, ...] = ()
    """Full-attention models to measure beside it, the one that comes first in tables first."""

    budgets: tuple[int, ...] | None = None
    """Rising; None means the command's own choice, here and below."""

    ffn: tuple[float, ...] | None = None
    """Shares of the hidden units, rising."""

    resolution: int | None = None
    """Pixels."""

    protocol: str | None = None
    feature: str | None = None

    also: tuple[str, ...] = ()
    """Further sets on which the heads of this one are measured, as ImageNetV2 on ImageNet-1K's."""

    seed: int = 0

    allow_partial: bool = False

    @property
    def name(self) -> str:
        """Words to know it by."""
        side = f" at {self.resolution} px" if self.resolution is not None else ""
        protocol = f", {self.protocol}" if self.protocol is not None else ""
        return f"{self.task} of {self.model} on {self.data}{side}{protocol}, seed {self.seed}"

    def as_json(self) -> dict[str, Any]:
        """The fields as plain values."""
        found = dataclasses.asdict(self)
        for name in (*NUMBERS, *TEXTS):
            found[name] = None if found[name] is None else list(found[name])
        return found

    def identity(self, facts: Mapping[str, Any]) -> str:
        """SHA-256 of all that decides the numbers; `facts` are hashes of weights and pictures."""
        fields = self.as_json()
        baselines = fields.pop("baseline")
        # An only baseline goes by its former name, so that jobs of older suites stay done.
        fields["control"] = baselines if len(baselines) > 1 else next(iter(baselines), None)
        whole = {"job": fields, "version": VERSION, "facts": dict(facts)}
        return hashlib.sha256(dumps_strict(_sorted(whole), self.name).encode()).hexdigest()


FIELDS = tuple(item.name for item in dataclasses.fields(Job))


def read_suite(path: Path) -> list[Job]:
    """The jobs of a file, combinations written out, each once."""
    content = _content(path)
    if isinstance(content, list):
        content = {"jobs": content}
    if not isinstance(content, dict) or content.keys() - {"defaults", "jobs"}:
        raise SuiteError(
            f"{path} must hold `jobs`, a list, and may hold `defaults`; it holds "
            f"{', '.join(sorted(content)) if isinstance(content, dict) else 'something else'}."
        )
    defaults = _fields(content.get("defaults", {}), f"`defaults` of {path}")
    entries = content.get("jobs")
    if not isinstance(entries, list) or not entries:
        raise SuiteError(
            f"{path} has no jobs; add one, as [[jobs]] with task, data and model in TOML."
        )
    jobs: list[Job] = []
    for number, entry in enumerate(entries, start=1):
        where = f"job {number} of {path}"
        jobs += _jobs(defaults | _fields(entry, where), where)
    return list(dict.fromkeys(jobs))


def _content(path: Path) -> Any:  # noqa: ANN401 - whatever the file holds
    """What is in the file."""
    if path.suffix not in {".toml", ".json"}:
        raise SuiteError(f"{path} is no suite; give a file that ends in .toml or .json.")
    try:
        text = path.read_text("utf-8")
        return tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise SuiteError(f"{path} cannot be read ({error.strerror}); check the path.") from error
    except ValueError as error:
        kind = path.suffix[1:].upper()
        raise SuiteError(f"{path} is no {kind} ({error}); correct it.") from error


def _fields(entry: object, where: str) -> dict[str, Any]:
    """The fields of an entry by their own names."""
    if not isinstance(entry, dict):
        raise SuiteError(f"{where} is {entry!r}; it must have named fields, such as task.")
    found: dict[str, Any] = {}
    for name, value in entry.items():
        own = PLURALS.get(name, name.replace("-", "_"))
        if own not in FIELDS:
            near = difflib.get_close_matches(own, FIELDS, n=1)
            hint = f"; did you mean {near[0]}?" if near else "."
            raise SuiteError(
                f"{where} has the unknown field {name!r}; the fields are {', '.join(FIELDS)}{hint}"
            )
        if own in found:
            raise SuiteError(f"{where} gives {own} twice, once as {name!r}; remove one of them.")
        found[own] = value
    return found


def _jobs(fields: Mapping[str, Any], where: str) -> Iterator[Job]:
    """Every combination of an entry."""
    for name in ("task", "data", "model"):
        if name not in fields:
            raise SuiteError(f"{where} has no {name}; add it there or to `defaults`.")
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


def _checked(name: str, value: Any, where: str) -> Any:  # noqa: ANN401 - whatever the file holds
    """A value that a field may have; numbers of a list rise and stand once."""
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
    "ffn": (
        _is_share,
        "a list of shares up to 1, such as [0.25, 1.0]",
    ),
    "resolution": (_is_count, "a whole number of pixels above 0, or a list of them"),
    "protocol": (_is_text, "the name of a protocol, or a list of them"),
    "feature": (_is_text, "the name of a feature"),
    "also": (_is_text, "a list of sets, each NAME=FOLDER"),
    "seed": (_is_seed, "a whole number from 0, or a list"),
    "allow_partial": (lambda value: isinstance(value, bool), "true or false"),
}
"""What each field may be, and in words."""


def _sorted(value: Any) -> Any:  # noqa: ANN401 - plain values
    """The same with the keys of dictionaries in order, so that equal facts give equal text."""
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_sorted(item) for item in value]
    return value


JOBS_FOLDER = "jobs"


@dataclass(frozen=True, kw_only=True)
class Runner:
    """What it takes to run jobs."""

    facts: Callable[[Job], Mapping[str, Any]]
    """Hashes of the weights and pictures of a job, as plain values; a ValueError says why it cannot
    be run. Asked of every job before the first one runs, by the first worker only."""

    run: Callable[[Job], Sequence[Row]]
    """Runs a job on all workers; the rows of the first one count."""

    workers: Ranks

    tell: Callable[[str], None]
    """Shows a line to a person."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of the jobs of a suite."""

    rows: list[Row] = field(default_factory=list)
    """Of the jobs that were run and of those that had been done before."""

    ran: list[Job] = field(default_factory=list)
    skipped: list[Job] = field(default_factory=list)

    failed: dict[Job, str] = field(default_factory=dict)
    """Why, in a sentence each."""


def run_suite(jobs: Sequence[Job], folder: Path, runner: Runner) -> Outcome:
    """Run the jobs that are not done; rows are safe on disk before the next job begins."""
    outcome = Outcome()
    for number, (job, state) in enumerate(zip(jobs, _states(jobs, folder, runner), strict=True), 1):
        place = f"job {number} of {len(jobs)}: {job.name}"
        if state["error"] is not None:
            outcome.failed[job] = state["error"]
        elif state["rows"] is not None:
            runner.tell(f"{place}: done before")
            outcome.skipped.append(job)
            outcome.rows[:] = merge_rows(outcome.rows, _rows(state["rows"]))
        else:
            runner.tell(f"{place}")
            _run(job, Path(state["path"]), runner, outcome)
    return outcome


def record_path(folder: Path, job: Job, facts: Mapping[str, Any]) -> Path:
    """Where the rows of a job are kept."""
    return folder / JOBS_FOLDER / f"{job.identity(facts)[:16]}.json"


def _states(jobs: Sequence[Job], folder: Path, runner: Runner) -> list[dict[str, Any]]:
    """For each job where its record lies, its rows if it is done, and why it cannot be run.

    The first worker looks and tells the others, so that all of them run the same jobs.
    """
    if not runner.workers.is_main:
        return runner.workers.broadcast_object(None)
    return runner.workers.broadcast_object([_state(job, folder, runner) for job in jobs])


def _state(job: Job, folder: Path, runner: Runner) -> dict[str, Any]:
    """What is known of a job before it runs."""
    try:
        path = record_path(folder, job, runner.facts(job))
    except (ValueError, OSError) as error:
        runner.tell(f"{job.name}: cannot be run: {error}")
        return {"path": None, "rows": None, "error": str(error)}
    return {"path": str(path), "rows": _done(path, runner.tell), "error": None}


def _done(path: Path, tell: Callable[[str], None]) -> list[dict[str, Any]] | None:
    """The rows of a finished job; None where it must be run, also since its file is damaged."""
    if not path.exists():
        return None
    try:
        rows = json.loads(path.read_text("utf-8"))["rows"]
        return [row.as_json() for row in _rows(rows)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        tell(f"{path} is damaged ({error}), so its job runs again")
        return None


def _rows(values: Sequence[object]) -> list[Row]:
    """Rows that were written before."""
    return [row_from_json(value) for value in values]


def _run(job: Job, path: Path, runner: Runner, outcome: Outcome) -> None:
    """Run one job and keep its rows, or its error."""
    try:
        rows = list(runner.run(job))
    except (ValueError, OSError) as error:
        if runner.workers.world_size > 1:
            raise  # the others may wait in the middle of the job; what is done is on disk
        runner.tell(f"{job.name}: failed: {error}")
        outcome.failed[job] = str(error)
        return
    if runner.workers.is_main:
        make_folder(path.parent)
        head = dumps_strict(job.as_json(), "job")
        text = dumps_strict([row.as_json() for row in rows], "rows")
        write_atomic(path, [f'{{"job": {head},\n"rows": {text}}}\n'.encode()])
    outcome.ran.append(job)
    outcome.rows[:] = merge_rows(outcome.rows, rows)
