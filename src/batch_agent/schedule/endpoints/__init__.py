"""Pure decisions about endpoints."""
