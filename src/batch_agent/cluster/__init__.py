"""State that the workers of a run share across machines: work, facts, calls and limits."""
