"""Anthropic Messages wire format."""
