"""State machine of one agent, from its first request to its answer. No I/O."""
