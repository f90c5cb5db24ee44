"""Stores of facts: in memory, or in a SQLite file that outlives the process."""
