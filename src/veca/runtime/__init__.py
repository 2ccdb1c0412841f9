"""The basis of all other packages: files, ranks, devices, logging, signals."""

VERSION = "0.1.0"
"""The version of this package, as in `pyproject.toml` (a test compares them). A constant, because
the metadata of an installed package can be older than the source that runs."""


NO_PLOT = "No plot: it needs matplotlib (`pip install 'veca[figures]'`)."
"""What a report without matplotlib says."""


class VecaError(Exception):
    """Base class of the errors that veca raises on purpose, with a message for the user."""
