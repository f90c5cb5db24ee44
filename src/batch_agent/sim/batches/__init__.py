"""Batch APIs of the simulated server: OpenAI's files and batches, Anthropic's message batches."""
