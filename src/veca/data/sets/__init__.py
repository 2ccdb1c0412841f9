"""Labeled sets as their makers lay them out: parts, labels and counts, asserted before use."""
