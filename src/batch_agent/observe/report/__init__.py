"""A run as a page: the report of one that is over, and the live view in a browser."""
