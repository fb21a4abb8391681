"""A prompt set: checked conversations in their shuffled order, and the account of what was left out."""

import random
from collections import Counter
from dataclasses import dataclass

from tasks.corpus.conversation import Conversation, PromptRejected, to_conversation
from tasks.corpus.sources import read_records
from tasks.errors import EvidenceError
from tasks.recipe.fingerprint import digest
from tasks.recipe.sections import Prompts
from tasks.recipe.settings import Settings


@dataclass(frozen=True)
class PromptSet:
    """Conversations to ask, and why other records were skipped (reason -> count)."""

    conversations: tuple[Conversation, ...]
    skipped: dict[str, int]

    @property
    def sha256(self) -> str:
        """Return the digest of the conversations, in order."""
        return digest(self.conversations)

    @property
    def num_records(self) -> int:
        """Return how many records were read."""
        return len(self.conversations) + sum(self.skipped.values())


def read_prompt_set(prompts: Prompts, settings: Settings, *, dataset: str = "prompts") -> PromptSet:
    """Return the prompt set of a source: validated, shuffled by the seed, cut at the limit.

    Raises EvidenceError when nothing usable is left, with the reasons; RecipeError when nothing is there.
    """
    kept: dict[str, Conversation] = {}
    skipped: Counter[str] = Counter()
    for record in read_records(prompts.source, settings, newest_files=prompts.newest_files):
        try:
            conversation = to_conversation(record, system=prompts.system, dataset=dataset)
        except PromptRejected as reason:
            skipped[str(reason)] += 1
            continue
        if conversation.id in kept:
            skipped["id seen before"] += 1
        else:
            kept[conversation.id] = conversation
    if not kept:
        seen = "; ".join(f"{count} x {reason}" for reason, count in skipped.most_common(3)) or "the source is empty"
        raise EvidenceError(
            f"{prompts.source} holds no usable prompt ({seen}); expected prompt, messages or conversations"
        )
    order = sorted(kept)
    random.Random(prompts.seed).shuffle(order)
    chosen = order[: prompts.limit] if prompts.limit else order
    if len(chosen) < len(order):
        skipped["beyond prompts.limit"] = len(order) - len(chosen)
    return PromptSet(tuple(kept[name] for name in chosen), dict(skipped))
