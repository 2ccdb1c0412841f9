"""Recipes: configurations of whole runs by name."""
