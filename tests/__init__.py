"""The tests, mirrored folder by folder; a package, so that they can share what they need."""
