"""What some agent CLIs put before a system prompt."""

import re

PREAMBLE = re.compile(r"\A(?:[ \t]*(?:x-[a-z0-9-]+-header|x-session-id)[ \t]*:[^\n]*(?:\n|\Z)\s*)+", re.IGNORECASE)
"""Lines such as `x-anthropic-billing-header: cch=...`, other in every session, before the prompt proper."""
