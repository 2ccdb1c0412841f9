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

A field of a job that `LISTS` names may be a list; every combination is then a job. A job that
cannot be run, for example because its dataset is missing, does not stop the others.
"""

import itertools
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from veca.probe.report import add_rows, read_report
from veca.probe.rows import TASKS, Row
from veca.probe.run import Evaluator, Job
from veca.runtime import VecaError

LISTS = ("task", "data", "model", "protocol", "resolution", "seed")
"""Fields of which a list means several jobs."""

ALIASES = {"resolutions": "resolution", "seeds": "seed"}
"""Fields by the names of the command's flags."""

NUMBERS = ("budgets", "ffn")
"""Fields with a list of numbers within one job, whose heads are fitted together."""

TEXTS = ("baseline", "also")
"""Fields with a list of texts within one job; a single baseline needs no list."""

REQUIRED = ("task", "data", "model")


class SuiteError(VecaError, ValueError):
    """A suite that cannot be run."""


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_int(value: object, least: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1


RULES: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "task": (TASKS.__contains__, f"one of {', '.join(TASKS)}, or a list of them"),
    "data": (_is_text, "a folder or NAME=FOLDER, or a list of them"),
    "model": (_is_text, "the name of a model, or a list of them"),
    "teacher": (_is_text, "the name of a model"),
    "baseline": (_is_text, "the name of a model, or a list of them"),
    "budgets": (_is_int, "a list of whole numbers above 0, such as [8, 64]"),
    "ffn": (_is_share, "a list of shares up to 1, such as [0.25, 1.0]"),
    "resolution": (_is_int, "a whole number of pixels above 0, or a list of them"),
    "protocol": (_is_text, "the name of a protocol, or a list of them"),
    "feature": (_is_text, "the name of a feature"),
    "also": (_is_text, "a list of datasets, each NAME=FOLDER"),
    "seed": (lambda value: _is_int(value, 0), "a whole number >= 0, or a list of them"),
    "allow_partial": (lambda value: isinstance(value, bool), "true or false"),
}
"""The fields of a job: which values each may have, and a description."""


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
        jobs += _expand(defaults | _fields(entry, where), where)
    return list(dict.fromkeys(jobs))


def _fields(entry: object, where: str) -> dict[str, Any]:
    """The fields of an entry by their own names."""
    if not isinstance(entry, dict):
        raise SuiteError(f"{where} is {entry!r}; it needs named fields, such as task.")
    found: dict[str, Any] = {}
    for name, value in entry.items():
        own = ALIASES.get(name, name.replace("-", "_"))
        if own not in RULES or own in found:
            problem = "twice" if own in found else f"as the unknown field {name!r}"
            raise SuiteError(f"{where} has {own} {problem}; the fields are {', '.join(RULES)}.")
        found[own] = value
    return found


def _expand(fields: Mapping[str, Any], where: str) -> Iterator[Job]:
    """Every combination of an entry."""
    for name in REQUIRED:
        if name not in fields:
            raise SuiteError(f"{where} has no {name}; add it there or to [defaults].")
    listed = [
        value if isinstance(value, list) and value and name in LISTS else [value]
        for name, value in fields.items()
    ]
    for values in itertools.product(*listed):
        given = zip(fields, values, strict=True)
        yield Job(**{name: _checked(name, value, where) for name, value in given})


def _checked(name: str, value: Any, where: str) -> Any:  # noqa: ANN401 - whatever the file has
    """A valid value of a field; numbers of a list are sorted."""
    fits, allowed = RULES[name]
    single = name not in (*NUMBERS, *TEXTS) or (name == "baseline" and isinstance(value, str))
    values = [value] if single else value
    if not isinstance(values, list) or not values or not all(map(fits, values)):
        raise SuiteError(f"{where}: {name} is {value!r}; it must be {allowed}.")
    if name in NUMBERS:
        return tuple(sorted({float(item) if name == "ffn" else item for item in values}))
    return tuple(dict.fromkeys(values)) if name in TEXTS else value


class Outcome(NamedTuple):
    """What happened to the jobs of a suite."""

    ran: list[Job]
    skipped: list[Job]
    failed: dict[Job, str]
    """With the reason of each."""


def run_suite(jobs: Sequence[Job], folder: Path, evaluator: Evaluator) -> Outcome:
    """Run the jobs that are not done; rows are in the report before the next job begins."""
    outcome, ranks, log = Outcome([], [], {}), evaluator.ctx.ranks, evaluator.ctx.log
    states = ranks.broadcast_object(_states(jobs, folder, evaluator) if ranks.is_main else None)
    for number, (job, (done, problem)) in enumerate(zip(jobs, states, strict=True), start=1):
        name = f"job {number} of {len(jobs)}: {job.name}"
        if problem is not None:
            outcome.failed[job] = problem
            continue
        if done:
            log(f"{name}: already done")
            outcome.skipped.append(job)
            continue
        log(name)
        try:
            rows = evaluator.run_job(job)
        except (ValueError, OSError) as error:
            if ranks.world_size > 1:
                raise  # other ranks may be waiting in the middle of the job; what is done is saved
            log(f"{job.name}: failed: {error}")
            outcome.failed[job] = str(error)
            continue
        if ranks.is_main:
            add_rows(rows, folder)
        outcome.ran.append(job)
    return outcome


def is_done(expected: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> bool:
    """Whether a report has all rows of a job."""
    return all(
        any(all(getattr(row, name) == value for name, value in one.items()) for row in rows)
        for one in expected
    )


def _states(
    jobs: Sequence[Job], folder: Path, evaluator: Evaluator
) -> list[tuple[bool, str | None]]:
    """For each job whether it is done, and why it cannot be run."""
    rows = read_report(folder)
    found: list[tuple[bool, str | None]] = []
    for job in jobs:
        try:
            found.append((is_done(evaluator.expect(job), rows), None))
        except (ValueError, OSError) as error:
            evaluator.ctx.log(f"{job.name}: cannot be run: {error}")
            found.append((False, str(error)))
    return found
