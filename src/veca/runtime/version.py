"""The version of this package, written into every file that it makes."""

VERSION = "0.1.0"
"""Here and in `pyproject.toml`; a test holds the two together. A constant, since the metadata of
an installed package can be older than the source that runs."""
