"""A model outside torch: one graph whose budget is an input, and a session that runs it."""
