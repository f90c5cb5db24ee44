"""Which programs may ask."""

import secrets
from collections.abc import Mapping

from .guest import Guest
from .masking import Mask
from .refusal import Refused

_KEY_HEADERS = ("x-api-key", "api-key")
"""They hold nothing but a key."""


class Guests:
    """Known by their keys, one for each agent."""

    def __init__(self) -> None:
        self._by_agent: dict[str, Guest] = {}
        self._by_key: dict[str, Guest] = {}

    def admit(self, agent: str, hides: Mapping[str, str]) -> str:
        guest = self._by_agent.get(agent)
        if guest is None:
            guest = Guest(agent, f"sk-batch-agent-{secrets.token_hex(16)}", Mask(hides))
            self._by_agent[agent] = self._by_key[guest.key] = guest
        elif guest.mask.hides != hides:
            guest.mask = Mask(hides)
        return guest.key

    def dismiss(self, agent: str) -> None:
        guest = self._by_agent.pop(agent, None)
        if guest is not None:
            del self._by_key[guest.key]
            guest.leave()

    def dismiss_all(self) -> None:
        for agent in list(self._by_agent):
            self.dismiss(agent)

    def who_asks(self, headers: Mapping[str, str]) -> Guest:
        """Raises Refused."""
        scheme, _, token = headers.get("Authorization", "").partition(" ")
        keys = [token.strip()] if scheme.lower() == "bearer" else []
        keys += [headers[name].strip() for name in _KEY_HEADERS if name in headers]
        for key in keys:
            if key in self._by_key:
                return self._by_key[key]
        what = "This key is not known, or its agent has left" if any(keys) else "There is no key"
        raise Refused(
            f"{what}: send the one that was made for this agent, as Authorization: Bearer or as x-api-key.",
            status=401,
            code="invalid_api_key",
        )
