"""How Sphinx builds the site: `make docs` writes it to build/docs."""

import tomllib
from collections.abc import Iterator
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]

project = "veca"
author = "The veca contributors"
project_copyright = "The veca contributors, Apache-2.0"
PACKAGE = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
version = release = PACKAGE["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

# Docstrings are Google style with Markdown's single backticks.
default_role = "code"
autodoc_mock_imports = ["pyarrow"]  # an extra that the docs need not install
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = "veca"
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}

COMMANDS = ("Run: ", "Then: ")
"""What begins a command in the docstring of a recipe; indented lines continue it."""

_originals: dict[str, list[str]] = {}


def remember(  # noqa: PLR0913, PLR0917 - the signature of the event
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Keep a docstring as it was before napoleon read it."""
    _originals[name] = list(lines)


def repair(  # noqa: PLR0913, PLR0917 - the signature of the event
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Undo what napoleon and namedtuple do to one-line docstrings, and quote commands."""
    original = _originals.pop(name)
    if what in {"attribute", "property"}:  # napoleon takes words before a colon for a type
        lines[:] = [] if original[0].startswith("Alias for field number") else original
    elif any(line.startswith(COMMANDS) for line in lines):
        lines[:] = list(quoted(lines))


def quoted(lines: list[str]) -> Iterator[str]:
    """Lines with each command as a code block."""
    inside = False
    for line in lines:
        if line.startswith(COMMANDS):
            head, _, command = line.partition(" ")
            yield from ("", f"{head}:", "", f"    {command}")
            inside = True
        elif inside and line.startswith(" "):
            yield f"        {line.strip()}"
        else:
            inside = False
            yield line


def allow_orphans(app: Sphinx, docname: str, source: list[str]) -> None:
    """Let the generated tables of a record be pages that only the record links to."""
    if docname.startswith("results/") and not docname.endswith(("/README", "/index")):
        source[0] = f"---\norphan: true\n---\n{source[0]}"


def setup(app: Sphinx) -> None:
    """Connect the hooks around napoleon, whose priority is 500."""
    app.connect("autodoc-process-docstring", remember, priority=100)
    app.connect("autodoc-process-docstring", repair, priority=900)
    app.connect("source-read", allow_orphans)
