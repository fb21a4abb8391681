"""Frozen prompt sets: identity by content, and the proof that training never saw them.

Two prompts overlap when they share an id, the same normalised text, or a run of 13 words. Only user turns count: a
system turn is the same for every prompt of a service.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tasks.bench.measurement import PromptSetIdentity
from tasks.corpus.conversation import Conversation
from tasks.errors import EvidenceError
from tasks.recipe.fingerprint import digest

# Run of words that counts as contamination; the length that the GPT-3 report made usual (arXiv 2005.14165, app. C).
GRAM_WORDS = 13
# Scripts written without spaces: every character is a word of its own.
_UNSPACED = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")
_IDS_SHOWN = 3

_Key = TypeVar("_Key")


@dataclass(frozen=True)
class OverlapReport:
    """Ids of held-out prompts that training saw, by the way they were recognised."""

    num_held_out: int
    num_training: int
    same_id: tuple[str, ...]
    same_text: tuple[str, ...]
    shared_gram: tuple[str, ...]

    @property
    def ids(self) -> tuple[str, ...]:
        """Return every overlapping held-out id once, sorted."""
        return tuple(sorted({*self.same_id, *self.same_text, *self.shared_gram}))


def freeze(name: str, conversations: Sequence[Conversation]) -> tuple[Conversation, ...]:
    """Return the prompts of one set in their order, their data set named "name", or "name/domain" where they have one.

    A conversation read with dataset=name has no domain of its own.
    """
    return tuple(
        item if item.dataset == name else item.model_copy(update={"dataset": f"{name}/{item.dataset}"})
        for item in conversations
    )


def identify(prompts: Sequence[Conversation]) -> PromptSetIdentity:
    """Return the identity of a prompt set: sha256 over ids, data sets, messages and their order, and the count."""
    return PromptSetIdentity(sha256=digest(list(prompts)), count=len(prompts))


def overlap(held_out: Sequence[Conversation], training: Iterable[Conversation]) -> OverlapReport:
    """Return which held-out prompts occur in training; training is read once and may be a stream."""
    owners_of_gram = _owners((gram, item.id) for item in held_out for gram in _grams(_user_turns(item)))
    owners_of_text = _owners((_normalised(_user_turns(item)), item.id) for item in held_out)
    held_ids = {item.id for item in held_out}
    by_id: set[str] = set()
    by_text: set[str] = set()
    by_gram: set[str] = set()
    num_training = 0
    for item in training:
        num_training += 1
        turns = _user_turns(item)
        by_id |= held_ids & {item.id}
        by_text |= owners_of_text.get(_normalised(turns), set())
        for gram in _grams(turns):
            if gram in owners_of_gram:
                by_gram |= owners_of_gram[gram]
    return OverlapReport(
        num_held_out=len(held_out),
        num_training=num_training,
        same_id=tuple(sorted(by_id)),
        same_text=tuple(sorted(by_text)),
        shared_gram=tuple(sorted(by_gram)),
    )


def refuse_overlap(report: OverlapReport, where: str) -> None:
    """Raise EvidenceError when training saw a held-out prompt: acceptance measured there would flatter the draft."""
    if not report.ids:
        return
    shown = ", ".join(report.ids[:_IDS_SHOWN])
    raise EvidenceError(
        f"{where}: {len(report.ids)} of {report.num_held_out} held-out prompts are among the {report.num_training} "
        f"training prompts (same id {len(report.same_id)}, same text {len(report.same_text)}, "
        f"{GRAM_WORDS} words in a row {len(report.shared_gram)}), for example {shown}; "
        "expected none. Remove them from one of the two sets"
    )


def _user_turns(item: Conversation) -> list[list[str]]:
    texts = (turn["content"] for turn in item.messages if turn["role"] == "user" and turn["content"])
    return [_WORD.findall(unicodedata.normalize("NFKC", text).casefold()) for text in texts]


def _normalised(turns: Sequence[Sequence[str]]) -> str:
    return "\n".join(" ".join(words) for words in turns)


def _grams(turns: Sequence[Sequence[str]]) -> Iterator[tuple[str, ...]]:
    for words in turns:
        for start in range(len(words) - GRAM_WORDS + 1):
            yield tuple(words[start : start + GRAM_WORDS])


def _owners(pairs: Iterable[tuple[_Key, str]]) -> dict[_Key, set[str]]:
    owners: dict[_Key, set[str]] = {}
    for key, owner in pairs:
        owners.setdefault(key, set()).add(owner)
    return owners
