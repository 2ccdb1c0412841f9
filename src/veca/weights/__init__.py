"""Weights in and out: our own files, the hub, and the authors' checkpoints."""
