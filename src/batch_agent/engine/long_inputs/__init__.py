"""Inputs that do not fit the context window of the model: found before they are sent, and split if wanted."""
