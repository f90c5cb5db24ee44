"""Pure: one agent's life, from its first request to its answer."""
