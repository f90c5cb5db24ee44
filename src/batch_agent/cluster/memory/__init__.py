"""Coordinator in memory, with the facts in a store."""
