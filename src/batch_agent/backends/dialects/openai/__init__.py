"""OpenAI chat completions wire format."""
