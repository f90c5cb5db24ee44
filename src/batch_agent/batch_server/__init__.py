"""Batches on any backend: answers the lines of a batch file with the limits, retries and failover of a run. Available
as a command (`run-batch`), and as a durable server with OpenAI's API (`serve-batches`)."""
