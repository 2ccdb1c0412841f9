"""The rules of `rules.py` hold for the project, and each of them can fail."""

import os
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import pytest

import veca
from tests import rules
from tests.rules import ROOT, Module, modules_below
from veca.runtime import VERSION

PACKAGE = ROOT / "src" / "veca"


def files_of_the_repository(root: Path) -> list[Path]:
    """What git tracks or would add, even inside a git hook or under another owner."""
    names = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "-co", "--exclude-standard"],
        cwd=root,
        env={name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
        check=True,
        capture_output=True,
        encoding="utf-8",
    ).stdout.split("\0")
    return [root / name for name in names if name and (root / name).is_file()]


def refuse(breaches: list[str]) -> None:
    """Fail with every breach on a line of its own."""
    if breaches:
        pytest.fail("\n".join(breaches), pytrace=False)


PACKAGE_RULES = [
    rules.overlong_file,
    rules.overlong_function,
    rules.drawer,
    rules.pickle_outside_its_home,
    rules.unguarded_pickle,
    rules.foreign_import_in_backbone,
]


@pytest.mark.parametrize("rule", PACKAGE_RULES)
def test_the_package_keeps_the_rule(rule: Callable[[Module], Iterator[str]]) -> None:
    modules = modules_below(PACKAGE)
    assert PurePosixPath("backbone/model.py") in {module.path for module in modules}
    refuse([f"src/veca/{module.path}: {text}" for module in modules for text in rule(module)])


@pytest.mark.parametrize("rule", [rules.oversized_file, rules.machine_path])
def test_the_repository_keeps_the_rule(rule: Callable[[Path], Iterator[str]]) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this copy is no git checkout")
    files = files_of_the_repository(ROOT)
    refuse([f"{path.relative_to(ROOT)}: {text}" for path in files for text in rule(path)])


def test_the_package_is_small_enough_to_live_in() -> None:
    refuse(list(rules.too_much(modules_below(PACKAGE))))


def test_a_package_that_grew_too_large_is_noticed() -> None:
    small = Module(PurePosixPath("a/small.py"), "x = 1\n" * (rules.SMALL_FILE - 1))
    enough = Module(PurePosixPath("a/enough.py"), "x = 1\n" * rules.SMALL_FILE)
    initial = Module(PurePosixPath("a/__init__.py"), "")
    most = rules.MOST_SMALL_FILES
    assert not list(rules.too_much([small] * most + [enough, initial]))
    assert "files below 60 lines" in "".join(rules.too_much([small] * (most + 1)))
    assert "files, allowed" in "".join(rules.too_much([enough] * (rules.MOST_FILES + 1)))
    long = Module(PurePosixPath("a/long.py"), "x = 1\n" * (rules.MOST_LINES + 1))
    assert "lines, allowed" in "".join(rules.too_much([long]))


def test_every_package_has_tests() -> None:
    refuse(list(rules.untested_packages(PACKAGE)))


def function_of(lines: int) -> str:
    """A decorated function of this many lines, the decorator not counted."""
    return "@decorator\ndef long():\n" + "    step()\n" * (lines - 1)


BAD_MODULES = [
    (rules.overlong_file, "model.py", "x = 1\n" * 701),
    (rules.overlong_function, "model.py", function_of(61)),
    (rules.overlong_function, "model.py", function_of(61).replace("def", "async def")),
    (rules.drawer, "backbone/image_helpers.py", ""),
    (rules.drawer, "misc/model.py", ""),
    (rules.drawer, "data/common_types.py", ""),
    (rules.pickle_outside_its_home, "data/images.py", "import pickle\n"),
    (rules.pickle_outside_its_home, "weights/checkpoint.py", "from pickle import loads\n"),
    (rules.pickle_outside_its_home, "distill/state.py", "torch.load(path, weights_only=True)\n"),
    (rules.unguarded_pickle, "teacher/lite.py", "torch.load(path)\n"),
    (rules.unguarded_pickle, "weights/official.py", "torch.load(path, weights_only=False)\n"),
    (rules.unguarded_pickle, "weights/official.py", "torch.load(path, weights_only=trusted)\n"),
    (rules.unguarded_pickle, "weights/official.py", "from torch import load\n"),
    (rules.unguarded_pickle, "data/arrays.py", "np.load(path, allow_pickle=True)\n"),
    (rules.foreign_import_in_backbone, "backbone/model.py", "import numpy as np\n"),
    (rules.foreign_import_in_backbone, "backbone/model.py", "from veca.weights import official\n"),
    (rules.foreign_import_in_backbone, "backbone/model.py", "def f():\n    import einops\n"),
]

GOOD_MODULES = [
    (rules.overlong_file, "model.py", "x = 1\n" * 700),
    (rules.overlong_function, "model.py", function_of(60)),
    (rules.drawer, "backbone/coordinates.py", ""),
    (rules.pickle_outside_its_home, "weights/official.py", "import pickle\n"),
    (rules.pickle_outside_its_home, "teacher/lite.py", "torch.load(path, weights_only=True)\n"),
    (rules.unguarded_pickle, "teacher/lite.py", "torch.load(path, weights_only=True)\n"),
    (rules.unguarded_pickle, "weights/checkpoint.py", "json.load(file)\n"),
    (rules.foreign_import_in_backbone, "backbone/model.py", "import math\nfrom torch import nn\n"),
    (rules.foreign_import_in_backbone, "backbone/model.py", "import veca.backbone.cost\n"),
    (rules.foreign_import_in_backbone, "weights/checkpoint.py", "import safetensors\n"),
]


def sample(folder: Path, name: str, text: str) -> Module:
    """A module as it would be read from a package in this folder."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    (module,) = modules_below(folder)
    return module


@pytest.mark.parametrize(("rule", "name", "text"), BAD_MODULES)
def test_a_rule_refuses_what_it_forbids(
    rule: Callable[[Module], Iterator[str]], name: str, text: str, tmp_path: Path
) -> None:
    assert list(rule(sample(tmp_path, name, text)))


@pytest.mark.parametrize(("rule", "name", "text"), GOOD_MODULES)
def test_a_rule_accepts_what_it_allows(
    rule: Callable[[Module], Iterator[str]], name: str, text: str, tmp_path: Path
) -> None:
    assert list(rule(sample(tmp_path, name, text))) == []


def test_a_package_counts_as_tested_once_it_has_a_test_file(tmp_path: Path) -> None:
    package, tests = tmp_path / "package", tmp_path / "tests"
    (package / "backbone").mkdir(parents=True)
    (package / "backbone" / "__init__.py").touch()
    (tests / "backbone").mkdir(parents=True)
    assert list(rules.untested_packages(package, tests)) == ["tests/backbone has no tests"]

    (tests / "backbone" / "test_model.py").touch()
    assert list(rules.untested_packages(package, tests)) == []


@pytest.mark.parametrize(("name", "refused"), [("log.txt", True), ("model.safetensors", False)])
def test_a_large_file_is_refused_unless_it_holds_weights(
    name: str, refused: bool, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(b"x" * (rules.MAX_FILE_BYTES + 1))
    assert bool(list(rules.oversized_file(path))) is refused


@pytest.mark.parametrize(
    ("parts", "refused"),
    [
        (("see ", "/home", "/ada/notes"), True),
        (("root = '", "/Users", "/ada'"), True),
        (("file://", "/tmp", "/x"), True),
        (("C:", "\\Users", "\\ada"), True),
        (("https://example.org", "/home", "/page"), False),
        (("..", "/work", "/notes"), False),
        (("$(DIR)", "/tmp", "/x"), False),
        (("#!", "/usr/bin/env bash"), False),
    ],
)
def test_a_path_of_one_machine_is_refused_and_an_address_is_not(
    parts: tuple[str, ...], refused: bool, tmp_path: Path
) -> None:
    path = tmp_path / "page.md"
    path.write_text("".join(parts), "utf-8")
    assert bool(list(rules.machine_path(path))) is refused


def test_the_files_of_the_repository_are_those_git_would_keep(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    for name in (".gitignore", "kept.py", "thrown.log"):
        (tmp_path / name).write_text("*.log\n", "utf-8")
    assert {path.name for path in files_of_the_repository(tmp_path)} == {".gitignore", "kept.py"}


def test_the_source_and_the_package_have_the_same_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["version"] == VERSION == veca.__version__


def test_the_documents_name_files_that_exist() -> None:
    for page in ("docs/architecture.md", "CONTRIBUTING.md"):
        text = (ROOT / page).read_text("utf-8")
        named = set(re.findall(r"(?<![\w/.])[\w.]+/[\w/.]+\.(?:py|md|html|toml)\b", text))
        missing = [
            name for name in named if not any((at / name).is_file() for at in (PACKAGE, ROOT))
        ]
        assert sorted(set(missing) - {"build/fingerprint.py"}) == [], page
