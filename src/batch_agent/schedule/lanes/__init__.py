"""Pure decisions about lanes."""
