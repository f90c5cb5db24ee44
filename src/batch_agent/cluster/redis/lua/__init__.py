"""Lua scripts that run in the Redis server."""
