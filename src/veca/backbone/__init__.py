"""The model. Imports torch and jaxtyping only; `model.py` shows the whole forward pass."""
