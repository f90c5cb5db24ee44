"""What some agent CLIs put before a system prompt."""

import re

_NAME = r"x-(?:(?:anthropic|amz)-[a-z0-9-]+|[a-z0-9-]+-header|session-id)"
PREAMBLE = re.compile(rf"\A(?:[ \t]*{_NAME}[ \t]*:[^\n]*(?:\n|\Z)\s*)+", re.IGNORECASE)
"""Lines such as `x-anthropic-billing-header: cch=...` or `x-amz-date: ...`, other in every session, before the prompt
proper. Lines further down stay: there somebody may be writing about such headers (lint tells of them)."""
