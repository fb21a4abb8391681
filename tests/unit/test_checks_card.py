"""Guards the model card: it says what is at hand, how to serve the draft, and invents nothing."""

from pathlib import Path

from tasks.bench.measurement import Acceptance, Arm, Measurement, Speed
from tasks.checks.card import CardFacts, model_card
from tasks.checks.draft import check_draft
from tasks.checks.source import LocalFolder
from tests.cases.tiny import TinyDraft


def speed(arm: str, rate: float) -> Speed:
    return Speed.model_validate(
        {
            "arm": arm,
            "concurrency": 8,
            "repeat": 0,
            "num_prompts": 4,
            "completion_tokens": 400,
            "wall_s": 400 / rate,
            "tok_per_s": rate,
        }
    )


def test_card_holds_every_figure_that_is_there(tmp_path: Path) -> None:
    verdict = check_draft(LocalFolder(TinyDraft().write(tmp_path / "draft")))
    accepted = Acceptance(
        dataset="service",
        num_prompts=9,
        num_steps=100,
        num_accepted=64,
        acceptance_length=1.64,
        per_position=(0.41, 0.16, 0.07),
    )
    measurement = Measurement(
        draft_tokens=3,
        temperature=0.0,
        max_tokens=128,
        arms=(
            Arm(name="baseline", fingerprint=None, acceptance=(), speeds=(speed("baseline", 100.0),)),
            Arm(name="draft", fingerprint="ab", acceptance=(accepted,), speeds=(speed("draft", 130.0),)),
        ),
        engine={"vllm": "0.32.0"},
        prompt_sets={},
    )
    card = model_card(
        CardFacts("me/draft", "owner/target", 3, verdict, measurement, {"rows": 240}, {"epochs": 3, "seed": None})
    )

    for words in (
        'base_model: "owner/target"',
        "vllm serve owner/target",
        '"num_speculative_tokens": 3',
        "| service | 9 | 1.640 | 0.410 | 0.160 | 0.070 |",
        "| 8 | 100.0 | 130.0 | 1.30x |",
        "| rows | 240 |",
        "| epochs | 3 |",
        "PASS at level full",
        "sha256 of `model.safetensors`",
    ):
        assert words in card
    assert "seed" not in card


def test_card_without_a_measurement_claims_no_speed(tmp_path: Path) -> None:
    verdict = check_draft(LocalFolder(TinyDraft().write(tmp_path / "draft")), level="header")

    card = model_card(CardFacts("me/draft", "owner/target", 3, verdict))

    assert "speed-up" not in card
    assert "Acceptance" not in card
