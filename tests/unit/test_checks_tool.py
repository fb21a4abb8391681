"""Guards the command: exit status, last line, mended copies; and that checking needs neither torch nor Prefect."""

import filecmp
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from infra.check import open_source, parse_severities, register
from tasks.checks.draft import check_draft
from tasks.checks.mend import mend_draft
from tasks.checks.source import LocalFolder
from tasks.errors import DraftworksError, EvidenceError, RecipeError
from tests.cases.tiny import TinyDraft, draft_tensors, write_target
from tests.faults.servers import credentials, localbucket, open_store

CASES = Path(__file__).resolve().parents[1] / "cases"
TARGET = CASES / "_target"


def run(arguments: Sequence[str]) -> Result:
    app = typer.Typer()
    register(app)

    @app.callback()
    def root() -> None:
        """Make `check` a command of its own."""

    return CliRunner().invoke(app, ["check", "draft", *map(str, arguments)])


@pytest.mark.parametrize(
    ("case", "status", "word"),
    [("00-good", 0, "PASS"), ("42-dtype-fp32-weights", 0, "WARN"), ("36-missing-tensor", 1, "FAIL")],
)
def test_exit_status_follows_the_verdict(case: str, status: int, word: str) -> None:
    result = run([str(CASES / case), "--target", str(TARGET)])

    assert result.exit_code == status
    assert f"{word} (full, vllm-0.32)" in result.output


def test_last_line_is_one_json_object() -> None:
    result = run([str(CASES / "36-missing-tensor"), "--target", str(TARGET), "--json"])
    answer = json.loads(result.output.splitlines()[-1])

    assert (answer["kind"], answer["outcome"], answer["level"]) == ("draft", "FAIL", "full")
    assert answer["facts"]["num_bytes"] == 96392


def test_what_cannot_be_done_is_an_error_of_ours() -> None:
    assert isinstance(run([str(CASES / "nowhere")]).exception, DraftworksError)
    assert isinstance(run([str(CASES / "00-good" / "config.json")]).exception, EvidenceError)
    assert isinstance(run([str(CASES / "00-good"), "--severity", "CFG008"]).exception, RecipeError)
    with pytest.raises(RecipeError):
        parse_severities(["x"])


def test_training_record_is_compared(tmp_path: Path) -> None:
    record = tmp_path / "manifest.json"
    record.write_text(json.dumps({"facts": {"layer_ids": [1, 2, 3]}}))

    result = run([str(CASES / "00-good"), "--level", "header", "--manifest", str(record)])

    assert result.exit_code == 1
    assert "Trained on layers [1, 2, 3]" in result.output


def test_mended_copy_passes_and_the_draft_is_untouched(tmp_path: Path) -> None:
    draft = TinyDraft(tensors=draft_tensors(num_aux=4))
    draft.config |= {"eagle_aux_hidden_state_layer_ids": [2, 3, 4, 6], "auto_map": {"AutoModel": "config.X"}}
    draft.config["speculators_config"]["verifier"] = {"name_or_path": "/training/target"}
    draft.files |= {"optimizer_state_dict.pt": b"xx", "config.py": b"pass", "extra.bin": b"x"}
    folder, out = draft.write(tmp_path / "draft"), tmp_path / "out"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    result = run([str(folder), "--fix", str(out), "--publish-as", "owner/target", "--json"])
    answer = json.loads(result.output.splitlines()[-1])

    assert result.exit_code == 0, result.output
    assert (answer["outcome"], answer["mended"]["outcome"]) == ("FAIL", "PASS")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "model.safetensors"]
    config = json.loads((out / "config.json").read_text())
    assert config["transformer_layer_config"]["num_aux_hidden_states"] == 4
    assert config["speculators_config"]["verifier"]["name_or_path"] == "owner/target"
    mends = " ".join(answer["mended"]["mends"])
    for words in ("num_aux_hidden_states: 4", "auto_map", "owner/target", "left out optimizer_state_dict.pt (2 bytes)"):
        assert words in mends


def test_absolute_ids_become_offsets_and_nothing_else_changes(tmp_path: Path) -> None:
    mends = mend_draft(LocalFolder(CASES / "22-d2t-absolute"), tmp_path / "out")

    assert any("absolute ids became offsets" in mend for mend in mends)
    assert filecmp.cmp(tmp_path / "out" / "model.safetensors", CASES / "00-good" / "model.safetensors", shallow=False)
    assert check_draft(LocalFolder(tmp_path / "out"), target=TARGET).outcome == "PASS"


def test_nothing_is_overwritten_and_broken_weights_are_not_mended(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "file").write_text("x")
    with pytest.raises(EvidenceError, match="it exists"):
        mend_draft(LocalFolder(CASES / "00-good"), tmp_path / "here")
    with pytest.raises(EvidenceError, match="cut"):
        mend_draft(LocalFolder(CASES / "44-corrupt-safetensors" / "truncated"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_path_that_looks_like_a_hub_id_but_is_a_folder_is_read_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    TinyDraft().write(tmp_path / "owner" / "name")
    monkeypatch.chdir(tmp_path)

    assert isinstance(open_source("owner/name"), LocalFolder)


def test_full_check_imports_no_torch_and_no_prefect(tmp_path: Path) -> None:
    folder, target = TinyDraft().write(tmp_path / "draft"), write_target(tmp_path / "target")
    script = (
        "import sys; from pathlib import Path; import infra.check\n"
        "from tasks.checks.draft import check_draft; from tasks.checks.source import LocalFolder\n"
        f"print(check_draft(LocalFolder(Path({str(folder)!r})), target=Path({str(target)!r})).outcome)\n"
        "heavy = {'torch', 'transformers', 'vllm', 'prefect', 'boto3', 'speculators', 'safetensors'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout.split("\n")[:2] == ["PASS", "[]"]


def test_s3_prefix_is_checked_like_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with credentials(), localbucket(tmp_path) as url:
        store = open_store(url, "drafts")
        for name in ("config.json", "model.safetensors"):
            store.put_bytes(f"good/{name}", (CASES / "00-good" / name).read_bytes())
        monkeypatch.setenv("DRAFTWORKS_S3_ENDPOINT", url)

        found = run(["s3://store-tests/drafts/good", "--target", str(TARGET), "--json"])
        missing = run(["s3://store-tests/drafts/nothing"])

    assert found.exit_code == 0, found.output
    assert json.loads(found.output.splitlines()[-1])["outcome"] == "PASS"
    assert isinstance(missing.exception, EvidenceError)
