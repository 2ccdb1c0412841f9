"""Rules about the source that no linter checks.

A rule is a function from one file to messages about its breaches. `test_architecture.py` applies
each one to the project, and to bad samples to prove that it can fail.
"""

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]

MAX_FILE_LINES = 700
MAX_FUNCTION_LINES = 60
MAX_FILE_BYTES = 1_000_000

# Of the package as a whole; `__init__.py` does not count as a small file.
HOUSE_FILES, HOUSE_LINES = 125, 24_000
LATER = {
    "the front door (issue 19)": (4, 1_500),
    "see it (issue 20)": (9, 4_000),
    "ship it (issue 21)": (9, 3_500),
    "house, still to fold (issue 18)": (0, 530),
}
"""Files and lines that capabilities may add to the house. Issues 21 and 22 add an entry with their
first commit, of at most 9 files and 3,500 lines; whoever needs less lowers it."""
MOST_FILES = HOUSE_FILES + sum(files for files, _ in LATER.values())
MOST_LINES = HOUSE_LINES + sum(lines for _, lines in LATER.values())
SMALL_FILE = 60
MOST_SMALL_FILES = 8

DRAWER = re.compile(r"utils|helpers|misc|common|(^|_)(util|helper)(_|$)")
PICKLING = frozenset({"cloudpickle", "dill", "joblib", "pickle", "shelve"})
BACKBONE_NEEDS = frozenset({"jaxtyping", "torch"})

# In pieces, so that this file keeps its own rule. The look-behind excludes the tail of a URL, of a
# relative path or of a variable.
MACHINE_FOLDERS = "|".join(("home", "Users", "root", "work", "tmp", "mnt", "opt", "scratch"))
MACHINE_PATH = re.compile(
    rf"(?:file://|(?<![\w.~$)}}/:-]))/(?:{MACHINE_FOLDERS})/[\w.~-]+|\b[A-Za-z]:\\+Users\\+\w+"
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One source file and its place in the package."""

    path: PurePosixPath
    """Relative to the package, as in `backbone/model.py`."""

    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree of the file."""
        return ast.parse(self.text)

    def calls(self) -> Iterator[ast.Call]:
        """Every call, in no order that matters."""
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.Call))

    def imports(self) -> Iterator[tuple[int, str]]:
        """Line and full dotted name of everything imported."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((node.lineno, name.name) for name in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from ((node.lineno, f"{node.module}.{name.name}") for name in node.names)


@cache
def modules_below(package: Path) -> list[Module]:
    """Every source file below a package."""
    return [
        Module(PurePosixPath(path.relative_to(package).as_posix()), path.read_text("utf-8"))
        for path in sorted(package.rglob("*.py"))
    ]


def overlong_file(module: Module) -> Iterator[str]:
    """A file is a subject, of at most 700 lines."""
    lines = len(module.text.splitlines())
    if lines > MAX_FILE_LINES:
        yield f"{lines} lines, at most {MAX_FILE_LINES}: split it by subject"


def overlong_function(module: Module) -> Iterator[str]:
    """A function fits on a screen, counted from `def` to its end, decorators apart."""
    for node in ast.walk(module.tree):
        if isinstance(node, Function):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield f"line {node.lineno}: {node.name} has {lines} lines, not {MAX_FUNCTION_LINES}"


def drawer(module: Module) -> Iterator[str]:
    """A name says what is inside."""
    for part in module.path.with_suffix("").parts:
        if DRAWER.search(part):
            yield f"{part!r} is a drawer for leftovers: name it after its subject"


def too_much(modules: Sequence[Module]) -> Iterator[str]:
    """The package as a whole stays small: fold before you add."""
    lines = sum(len(module.text.splitlines()) for module in modules)
    small = sorted(
        str(module.path)
        for module in modules
        if len(module.text.splitlines()) < SMALL_FILE and module.path.name != "__init__.py"
    )
    if len(modules) > MOST_FILES:
        yield f"{len(modules)} files, allowed are {MOST_FILES}"
    if lines > MOST_LINES:
        yield f"{lines} lines, allowed are {MOST_LINES}"
    if len(small) > MOST_SMALL_FILES:
        yield (
            f"{len(small)} files below {SMALL_FILE} lines, allowed are {MOST_SMALL_FILES}: "
            f"{', '.join(small)}"
        )


def untested_packages(package: Path, tests: Path = ROOT / "tests") -> Iterator[str]:
    """Every package has tests; a test file is a subject, not the mirror of one module."""
    for folder in sorted(package.iterdir()):
        if (folder / "__init__.py").is_file() and not any((tests / folder.name).glob("test_*.py")):
            yield f"tests/{folder.name} has no tests"


def pickle_outside_its_home(module: Module) -> Iterator[str]:
    """A pickle can run code, so only two places read one."""
    if module.path == PurePosixPath("weights/official.py") or module.path.parts[0] == "teacher":
        return
    for line, name in module.imports():
        if name.split(".")[0] in PICKLING:
            yield f"line {line}: {name} belongs to weights/official.py and teacher/"
    for call in module.calls():
        if ast.unparse(call.func) == "torch.load":
            yield f"line {call.lineno}: torch.load belongs to weights/official.py and teacher/"


def unguarded_pickle(module: Module) -> Iterator[str]:
    """Pickles are read with weights_only=True, visible in the call."""
    for line, name in module.imports():
        if name == "torch.load":
            yield f"line {line}: write torch.load(...), so that this rule can see it"
    for call in module.calls():
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        if ast.unparse(call.func) == "torch.load":
            given.setdefault("weights_only", "not given")
        if given.get("weights_only", "True") != "True":
            yield f"line {call.lineno}: weights_only is {given['weights_only']}, it must be True"
        if given.get("allow_pickle", "False") != "False":
            yield f"line {call.lineno}: allow_pickle is {given['allow_pickle']}, it must be False"


def foreign_import_in_backbone(module: Module) -> Iterator[str]:
    """The model needs torch and jaxtyping, nothing else."""
    if module.path.parts[0] != "backbone":
        return
    for line, name in module.imports():
        top = name.split(".")[0]
        if top == "veca" and not name.startswith("veca.backbone."):
            yield f"line {line}: {name} lies outside the backbone"
        if top not in BACKBONE_NEEDS | sys.stdlib_module_names | {"veca"}:
            yield f"line {line}: {name}; the backbone needs {', '.join(sorted(BACKBONE_NEEDS))}"


def oversized_file(path: Path) -> Iterator[str]:
    """Git keeps a large file forever; weights of the package are the exception."""
    size = path.stat().st_size
    if size > MAX_FILE_BYTES and path.suffix != ".safetensors":
        yield f"{size} bytes, allowed are {MAX_FILE_BYTES}"


def machine_path(path: Path) -> Iterator[str]:
    """A folder of one machine does not exist on another."""
    content = path.read_bytes()
    if b"\0" in content:  # no text
        return
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), start=1):
        if found := MACHINE_PATH.search(line):
            yield f"line {number}: {found[0]} is a path of one machine"
