"""The page of `veca explore` and its JSON API; nothing is imported here."""
