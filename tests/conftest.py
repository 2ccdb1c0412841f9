"""What every test gets: one thread, a fixed seed, properties without deadlines."""

import os

import hypothesis
import pytest
import torch

# Deadlines measure the machine, not the code; fixed examples make a failure repeat everywhere.
# `make test` looks at 25 examples of a property, HYPOTHESIS_PROFILE=nightly at 300.
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, max_examples=25)
hypothesis.settings.register_profile("nightly", deadline=None, max_examples=300)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests marked `gpu` where there is none."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_runtest_setup() -> None:
    """Give every test the same random numbers and one thread, whichever tests ran before it."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # as `make test`; two processes share two cores
