"""Batch API of OpenAI without I/O: files, batches, and the lines of their files."""
