"""The command line: one module per verb, with no logic of its own."""
