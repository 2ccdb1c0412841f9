"""Distillation: a student learns a frozen teacher's features at changing budgets."""
