"""Build the package as it would be published, and use it from an empty environment: make package.

Two builds must give the same bytes, twine must accept them, the wheel must hold the weights, the
types and the page but no tests, and `veca demo` must run from nothing but the wheel.
"""

import filecmp
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
MOST_BYTES = 12_000_000
"""Of the wheel without the weights."""

NEEDED = (
    "veca/py.typed",
    "veca/weights/bundled/veca-tiny/model.safetensors",
    "veca/explore/static/index.html",
    "veca/analysis/page.css",
)


def run(*command: str | Path) -> None:
    """Run a command, and stop if it fails."""
    print("$", *command, flush=True)
    subprocess.run([str(word) for word in command], check=True, cwd=ROOT)


def check_wheel(wheel: Path) -> None:
    """What must be in the wheel, and what must not."""
    with zipfile.ZipFile(wheel) as archive:
        sizes = {item.filename: item.compress_size for item in archive.infolist()}
    missing = [name for name in NEEDED if name not in sizes]
    strange = [name for name in sizes if not name.startswith(("veca/", "veca-"))]
    rest = sum(size for name, size in sizes.items() if not name.endswith(".safetensors"))
    if missing or strange or rest > MOST_BYTES:
        sys.exit(f"{wheel.name}: missing {missing}, strange {strange}, {rest} bytes but weights")
    print(f"{wheel.name}: {len(sizes)} files, {rest / 1e6:.1f} MB beside the weights")


def main() -> None:
    """Build, compare, check, install, run."""
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for target in (DIST, folder / "again"):
            run(sys.executable, "-m", "build", "--outdir", target)
        built = sorted(DIST.iterdir())
        for file in built:
            if not filecmp.cmp(file, folder / "again" / file.name, shallow=False):
                sys.exit(f"two builds of {file.name} differ")
        run(sys.executable, "-m", "twine", "check", "--strict", *built)
        (wheel,) = DIST.glob("*.whl")
        check_wheel(wheel)
        venv.create(folder / "empty", with_pip=True)
        python = folder / "empty" / "bin" / "python"
        run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check",
            "-c", ROOT / "constraints.txt", f"{wheel}[samples]")  # fmt: skip
        run(python.with_name("veca"), "demo", "--out", folder / "demo")
    print("The package is ready:", *(file.name for file in built))


if __name__ == "__main__":
    main()
