"""Whole runs: recipes by name, what they train on where nothing is named, and how they are judged.

`distill.py` holds the recipes as functions; `run.py` runs one. `quick_pictures.py` makes the
pictures of the recipe `quick`, and `judge.py` measures what a student has learned from them.
"""
