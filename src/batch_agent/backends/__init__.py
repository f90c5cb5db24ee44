"""Adapters to inference servers: a dialect (how bytes look) plus a flavor (who serves them)."""
