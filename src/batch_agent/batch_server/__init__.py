"""Batches on any backend: the lines of a batch file, answered with the limits, retries and failover of a run. As a
command (`run-batch`), and as a durable server with OpenAI's API (`serve-batches`)."""
