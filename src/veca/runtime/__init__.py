"""The basis of all other packages: files, ranks, devices, logging, signals."""

VERSION = "0.1.0"
"""The version of this package, as in `pyproject.toml` (a test compares them). A constant, because
the metadata of an installed package can be older than the source that runs."""


class VecaError(Exception):
    """Base class of the errors that veca raises on purpose, with a message for the user."""
