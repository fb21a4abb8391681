"""Guards the corpus: no prompt vanishes without a reason, no broken file is half read, no bad answer is trained on."""

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.corpus.conversation import PromptRejected, to_conversation
from tasks.corpus.prompts import read_prompt_set
from tasks.corpus.rows import RowRejected, read_rows, to_row, write_rows
from tasks.corpus.sources import read_records
from tasks.errors import EvidenceError, RecipeError
from tasks.recipe.sections import Prompts
from tasks.recipe.settings import PROJECT_ROOT, Settings

CASES = Path(__file__).parents[1] / "cases"
SHIPPED = PROJECT_ROOT / "deployments" / "prompts"


def records(case: str, file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (CASES / case / file).read_text().splitlines()]


def outcome(record: dict[str, Any]) -> str:
    try:
        to_conversation(record, system=None, dataset="d")
    except PromptRejected as reason:
        return str(reason)
    return "kept"


def test_roles_that_do_not_alternate_are_skipped_each_with_its_reason() -> None:
    seen = {record["id"]: outcome(record) for record in records("07-role-order", "convs.jsonl")}
    assert seen == {
        "ok": "kept",
        "starts-with-gpt": "starts with an assistant turn",
        "two-users": "two user turns in a row",
        "unknown-role": "unknown role 'bing'",
        "empty": "has no user turn",
        # Its answer is made by the target, so that an old one is not needed.
        "no-assistant": "kept",
    }


def test_tool_turns_keep_their_fields_and_the_old_answer_goes() -> None:
    conversation = to_conversation(records("05-tool-turns", "convs.jsonl")[0], system=None, dataset="d")
    assert [turn["role"] for turn in conversation.messages] == ["user", "assistant", "tool"]
    assert conversation.messages[1]["content"] is None
    assert conversation.messages[1]["tool_calls"][0]["id"] == "c1"
    assert conversation.tools[0]["function"]["name"] == "get_weather"


def test_half_a_surrogate_pair_is_skipped_and_a_whole_one_stays() -> None:
    assert outcome({"prompt": "fine \ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16")}) == "kept"
    assert outcome({"prompt": "cut in half \ud83d"}) == "holds half a surrogate pair"


def test_parts_of_text_are_joined_and_images_are_skipped() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    conversation = to_conversation({"messages": [{"role": "user", "content": parts}]}, system=None, dataset="d")
    assert conversation.messages[0]["content"] == "ab"
    picture = [{"type": "image_url", "image_url": {"url": "x"}}]
    assert outcome({"messages": [{"role": "user", "content": picture}]}) == "has image or audio parts"


def test_the_system_turn_is_added_once() -> None:
    bare = to_conversation({"prompt": "hi"}, system="Be brief.", dataset="d")
    own = to_conversation(
        {"messages": [{"role": "system", "content": "mine"}, {"role": "user", "content": "hi"}]},
        system="Be brief.",
        dataset="d",
    )
    assert [bare.messages[0]["content"], own.messages[0]["content"]] == ["Be brief.", "mine"]
    assert len(own.messages) == 2


def test_an_id_is_made_from_the_content_where_there_is_none() -> None:
    first, same, other = (to_conversation({"prompt": p}, system=None, dataset="d").id for p in ("a", "a", "b"))
    assert first == same != other


def test_broken_lines_are_named_and_nothing_is_read(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "ok"}\n{"prompt": \n[1]\n')
    with pytest.raises(EvidenceError, match=r"2 broken lines \(line 2: .*line 3: a list"):
        list(read_records(str(path), Settings()))


@pytest.mark.parametrize("text", ["", "\n\n", '{"text": "no such key"}\n'])
def test_a_source_without_a_usable_prompt_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.jsonl").write_text(text)
    with pytest.raises(EvidenceError, match="no usable prompt"):
        read_prompt_set(Prompts(source=str(tmp_path / "p.jsonl")), Settings())


def test_a_source_that_is_not_there_or_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="there is no"):
        read_prompt_set(Prompts(source=str(tmp_path / "none")), Settings())
    (tmp_path / "p.txt").write_text("hello")
    with pytest.raises(EvidenceError, match="neither .jsonl nor .parquet"):
        read_prompt_set(Prompts(source=str(tmp_path / "p.txt")), Settings())


def test_order_depends_on_the_seed_alone_and_the_account_closes(tmp_path: Path) -> None:
    lines = [json.dumps({"id": str(n), "prompt": f"question {n}"}) for n in range(20)]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, lines[0], '{"prompt": 3}']))
    (tmp_path / "b.jsonl").write_text("\n".join(reversed([*lines, lines[0], '{"prompt": 3}'])))
    sets = [
        read_prompt_set(Prompts(source=str(tmp_path / f), limit=5, seed=3), Settings()) for f in ("a.jsonl", "b.jsonl")
    ]
    assert sets[0].sha256 == sets[1].sha256
    assert len(sets[0].conversations) == 5
    assert sets[0].skipped["id seen before"] == 1
    assert sets[0].num_records == 22


def test_only_the_newest_files_of_a_folder(tmp_path: Path) -> None:
    import os

    for age, name in enumerate(["old", "newer", "newest"]):
        path = tmp_path / f"{name}.jsonl"
        path.write_text(json.dumps({"id": name, "prompt": name}) + "\n")
        os.utime(path, (1000 + age, 1000 + age))
    read = read_prompt_set(Prompts(source=str(tmp_path), newest_files=2), Settings())
    assert {item.id for item in read.conversations} == {"newer", "newest"}


def test_rows_survive_parquet_and_carry_the_mask(tmp_path: Path) -> None:
    row = to_row("q", [1, 2, 3], [4, 5], "text", "length")
    write_rows([row], tmp_path / "rows-00000.parquet")
    back = read_rows([tmp_path / "rows-00000.parquet"]).to_pylist()[0]
    assert back == {
        "id": "q",
        "input_ids": [1, 2, 3, 4, 5],
        "loss_mask": [0, 0, 0, 1, 1],
        "num_prompt_tokens": 3,
        "finish_reason": "length",
    }


@pytest.mark.parametrize(
    ("answer", "text", "reason"),
    [
        ([], "", "empty answer"),
        ([5], "  \n", "empty answer"),
        ([], "text", "no token ids"),
        ([5], "<think>\nadd th", "never closed"),
        ([5], "half \ud83d", "surrogate"),
    ],
)
def test_an_answer_that_must_not_be_trained_on(answer: list[int], text: str, reason: str) -> None:
    with pytest.raises(RowRejected, match=reason):
        to_row("q", [1], answer, text, "stop")


def test_the_shipped_prompts_are_what_the_readme_says() -> None:
    counts = {}
    for name in ("study-helper", "study-helper-held-out.jsonl", "general.jsonl"):
        read = read_prompt_set(Prompts(source=str(SHIPPED / name)), Settings())
        assert read.skipped == {}
        counts[name] = len(read.conversations)
    assert counts == {"study-helper": 1080, "study-helper-held-out.jsonl": 96, "general.jsonl": 96}
