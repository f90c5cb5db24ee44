"""Any command-line program as an agent runtime."""
