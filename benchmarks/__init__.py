"""Measurements behind our claims. Each is one command, with its peers in the same run."""
