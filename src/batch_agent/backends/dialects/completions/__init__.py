"""Wire format of requests that carry many prompts."""
