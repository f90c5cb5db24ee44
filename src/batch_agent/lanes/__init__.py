"""Lanes: service classes of requests. The batch lane submits requests in files that a provider processes within
hours."""
