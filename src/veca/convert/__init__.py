"""Students made from other models, without training."""
