"""Compilation of a spec and its inputs into the prompts of the agents. No I/O."""
