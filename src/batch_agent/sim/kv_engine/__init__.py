"""Simulated engine core: continuous batching over a paged KV cache. Pure."""
