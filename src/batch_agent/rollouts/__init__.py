"""Rollouts: the token ids of agents, kept during a run and exported for trainers."""
