"""How many tokens prompts and answers come to, before a tokenizer has seen them.

A token of common tokenizers covers about 4.5 bytes of English and 3 bytes (one character) of Chinese; 3 bytes a token
is a bound from above for both. The exact count is checked again before hidden states are extracted.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from tasks.corpus.conversation import Conversation
from tasks.recipe.fingerprint import canonical_json

BYTES_PER_TOKEN = 3
# Role markers around a turn; the system turn that chat templates add by themselves, and the opening of the answer.
TOKENS_PER_TURN = 8
TOKENS_PER_CONVERSATION = 32


def prompt_tokens(prompt: Conversation) -> int:
    """Return the tokens that a prompt has at most, chat template and tools included."""
    size = len(canonical_json(prompt.tools)) if prompt.tools else 0
    for turn in prompt.messages:
        size += len(str(turn.get("content") or "").encode("utf-8"))
        others = {key: value for key, value in turn.items() if key not in ("role", "content")}
        size += len(canonical_json(others)) if others else 0
    return TOKENS_PER_CONVERSATION + TOKENS_PER_TURN * len(prompt.messages) + -(-size // BYTES_PER_TOKEN)


@dataclass(frozen=True)
class PromptTokens:
    """The tokens of a set of prompts and of their answers at full length."""

    num_prompts: int = 0
    prompt_tokens: int = 0
    answer_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Return the tokens of the rows that prompts and answers become."""
        return self.prompt_tokens + self.answer_tokens

    @classmethod
    def count(cls, prompts: Iterable[Conversation], max_tokens: int, longest: int | None = None) -> Self:
        """Count prompts whose answers have max_tokens; longest: what a row can have, as the server limits it."""
        num_prompts, asked, answered = 0, 0, 0
        for prompt in prompts:
            num_prompts += 1
            size = prompt_tokens(prompt)
            if longest is not None:
                size = min(size, longest)
                answered += min(max_tokens, longest - size)
            else:
                answered += max_tokens
            asked += size
        return cls(num_prompts, asked, answered)
