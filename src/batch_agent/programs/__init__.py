"""Coding programs as agents: the model gateway, the runtimes and their workspaces."""
