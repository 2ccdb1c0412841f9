"""The command line: a table of commands, each of which only connects."""
