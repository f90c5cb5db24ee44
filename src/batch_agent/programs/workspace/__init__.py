"""Working copies of a folder for coding agents, and what changed in them."""
