"""OpenCode as an agent runtime."""
