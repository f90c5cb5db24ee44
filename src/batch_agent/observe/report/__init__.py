"""HTML page of a run: the report of a finished run, and the live view in a browser."""
