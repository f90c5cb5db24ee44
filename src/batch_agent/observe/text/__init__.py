"""Runs and results as lines of plain text."""
