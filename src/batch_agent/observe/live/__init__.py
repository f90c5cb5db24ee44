"""A run while it goes on: in a terminal, a notebook or a log."""
