"""Codex as an agent runtime."""
