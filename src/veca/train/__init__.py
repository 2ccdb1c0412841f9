"""What every training shares, whatever it learns from."""
