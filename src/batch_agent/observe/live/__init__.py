"""Live views of a run in a terminal, a notebook or a log."""
