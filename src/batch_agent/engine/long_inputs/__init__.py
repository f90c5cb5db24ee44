"""Inputs that do not fit the model's context window, which are found before they are sent, and split if wanted."""
