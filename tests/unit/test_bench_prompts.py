"""Guards the prompt sets: an identity that sees every change, and the refusal to measure on training prompts."""

import pytest

from tasks.bench.prompts import freeze, identify, overlap, refuse_overlap
from tasks.corpus.conversation import Conversation
from tasks.errors import EvidenceError

LONG = "one two three four five six seven eight nine ten eleven twelve thirteen"


def prompt(name: str, text: str, dataset: str = "service", system: str | None = None) -> Conversation:
    turns = [{"role": "system", "content": system}] if system else []
    return Conversation(id=name, dataset=dataset, messages=(*turns, {"role": "user", "content": text}))


def test_identity_depends_on_text_id_data_set_and_order() -> None:
    first, second = prompt("a", "x"), prompt("b", "y")
    identities = [
        identify(found).sha256
        for found in (
            [first, second],
            [second, first],
            [first],
            [first, prompt("b", "z")],
            [first, prompt("c", "y")],
            [first, prompt("b", "y", "general")],
        )
    ]
    assert len(set(identities)) == len(identities)
    assert identify([first, second]).count == 2
    assert identify([first, second]) == identify([prompt("a", "x"), prompt("b", "y")])


def test_a_domain_becomes_a_part_of_its_set() -> None:
    frozen = freeze("general", [prompt("a", "x", "code"), prompt("b", "y", "general")])
    assert [item.dataset for item in frozen] == ["general/code", "general"]


def test_disjoint_sets_are_accepted() -> None:
    report = overlap([prompt("a", LONG)], [prompt("b", "something else"), prompt("c", LONG.replace("seven", "7"))])
    assert (report.ids, report.num_held_out, report.num_training) == ((), 1, 2)
    refuse_overlap(report, "held-out prompts")


def test_the_three_ways_to_overlap_are_told_apart() -> None:
    held_out = [prompt("a", "Why is the sky blue?"), prompt("b", "What is rain?"), prompt("c", f"please {LONG}")]
    training = iter([prompt("a", "other"), prompt("t1", "what  is RAIN"), prompt("t2", f"now: {LONG.upper()}, thanks")])
    report = overlap(held_out, training)
    assert (report.same_id, report.same_text, report.shared_gram) == (("a",), ("b",), ("c",))
    with pytest.raises(EvidenceError, match="demo: 3 of 3 held-out prompts are among the 3 training prompts"):
        refuse_overlap(report, "demo")


def test_twelve_words_in_a_row_are_not_an_overlap() -> None:
    twelve = LONG.removesuffix(" thirteen")
    assert overlap([prompt("a", f"{twelve} x")], [prompt("b", f"{twelve} y")]).ids == ()


def test_a_shared_system_turn_is_not_an_overlap() -> None:
    assert overlap([prompt("a", "x", system=LONG)], [prompt("b", "y", system=LONG)]).ids == ()


def test_a_run_does_not_reach_over_two_turns() -> None:
    words = LONG.split()
    turns = tuple({"role": "user", "content": " ".join(part)} for part in (words[:6], words[6:]))
    assert overlap([Conversation(id="a", messages=turns)], [prompt("b", LONG)]).shared_gram == ()


def test_text_without_spaces_is_compared_by_characters() -> None:
    text = "\u6c34\u306f\u3069\u3053\u304b\u3089\u6765\u3066\u3069\u3053\u3078\u884c\u304f\u306e\u3067\u3059\u304b"
    assert overlap([prompt("a", text)], [prompt("b", f"{text}\u3002\u6559\u3048\u3066")]).shared_gram == ("a",)


def test_a_turn_without_text_is_passed_over() -> None:
    turns = ({"role": "user", "content": None, "tool_calls": []}, {"role": "user", "content": "x"})
    assert overlap([Conversation(id="a", messages=turns)], [prompt("b", "x")]).same_text == ("a",)
