"""Plain-text summaries of runs and agents."""
