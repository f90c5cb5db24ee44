"""Scores of answers, and what they say about a run: scorers, metrics with intervals, and comparisons of two runs."""
