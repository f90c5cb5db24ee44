"""Coordinator in Redis. Needs the extra `redis`."""
