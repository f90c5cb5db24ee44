"""Scores of answers and their analysis: scorers, metrics with intervals, and comparisons of two runs."""
