"""Lanes, which are service classes of requests. The batch lane submits requests in files that a provider processes
later."""
