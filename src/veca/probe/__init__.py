"""Frozen features judged by probes: heads, metrics, and one table over budgets."""
