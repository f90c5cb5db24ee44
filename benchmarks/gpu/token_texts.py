"""Texts of a known number of tokens."""

import random
import secrets
from dataclasses import dataclass

_LIST = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea body information "
    "back parent face others level office door health person art war history party result change morning reason "
    "research girl guy moment air teacher force education"
)
"""Each is one token of the tokenizers in common use, with the space before it."""
WORDS = _LIST.split()
_EVEN = [word for word in WORDS if len(word) == 4]
_SAMPLE = 2_000
NONCE_TOKENS = 5


@dataclass(frozen=True, slots=True)
class Words:
    """Writes texts for one tokenizer."""

    tokens_per_word: float = 1.0

    @classmethod
    def sample(cls) -> str:
        """The text to count the tokens of, for `measured`."""
        return cls().text("sample", _SAMPLE)

    @classmethod
    def measured(cls, tokens: int) -> "Words":
        return cls(tokens / _SAMPLE)

    def text(self, seed: str, tokens: int) -> str:
        """The same text for the same seed."""
        chosen = random.Random(seed).choices(WORDS, k=max(1, round(tokens / self.tokens_per_word)))
        return " ".join(chosen)

    def own(self, number: int, start: str, seed: str, tokens: int) -> str:
        """A text that differs from that of any other number (below 9,000) from its first two words on, and from that
        of any other `start` from there on."""
        first, second = WORDS[number % len(WORDS)], WORDS[number // len(WORDS)]
        return f"{first} {second} {start} {self.text(f'{seed} {number}', tokens - NONCE_TOKENS - 2)}"


def nonce() -> str:
    """What a run's prompts start with, so that it finds nothing of another run in the cache. Always equally long."""
    return " ".join(secrets.choice(_EVEN) for _ in range(NONCE_TOKENS))
