"""Pure: who may use the shared backend, when, and what follows a failure."""
