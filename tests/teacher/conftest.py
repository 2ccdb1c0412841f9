"""The small hub of the tests of weights also serves teachers."""

from tests.weights.test_hub import hub

__all__ = ["hub"]
