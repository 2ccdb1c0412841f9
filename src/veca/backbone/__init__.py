"""The model. Imports torch and jaxtyping only; `model.py` shows the whole way of the data."""
