"""Schedules, optimizers, checkpoints and logs, shared by every kind of training."""
