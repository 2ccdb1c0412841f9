"""Processes and files; knows nothing of the model."""
