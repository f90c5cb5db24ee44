"""Pure decisions: which agent may use the shared backend and when, and how to react to a failure."""
