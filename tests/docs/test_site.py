"""The site builds without a warning, as `make docs` builds it."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rules import ROOT

MOST_FILES_OF_RECORDS = 70

needs_sphinx = pytest.mark.skipif(
    importlib.util.find_spec("sphinx") is None, reason="needs the extra docs"
)


@needs_sphinx
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    words = ["-m", "sphinx", "-W", "--keep-going", "-q", "docs", str(tmp_path / "site")]
    built = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (built.returncode, built.stderr) == (0, "")
    api = (tmp_path / "site" / "api.html").read_text("utf-8")
    assert "Encode images with the first" in api  # docstrings were read


def test_every_page_says_what_it_is_for() -> None:
    for page in [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "guides").glob("*.md")]:
        text = page.read_text("utf-8")
        if "{include}" not in text:
            second = text.split("\n\n")[1]
            assert second.startswith("For "), f"{page.name} begins with: {second[:60]}"


def test_records_stay_few() -> None:
    files = [path for path in (ROOT / "docs" / "results").rglob("*") if path.is_file()]
    assert len(files) <= MOST_FILES_OF_RECORDS
