"""Guards the pictures: they hold what they should, stay small, do not change by themselves, and need no display."""

import subprocess
import sys

import pytest

from tasks.bench.measurement import Acceptance, Arm, ArmName
from tasks.bench.plots import Format, acceptance_per_position, training_curves
from tasks.errors import EvidenceError

MAX_BYTES = 80_000


def arm(name: ArmName = "draft", **rates: tuple[float, ...]) -> Arm:
    acceptance = tuple(
        Acceptance(
            dataset=dataset.replace("__", "/"),
            num_prompts=1,
            num_steps=100,
            num_accepted=round(100 * sum(found)),
            acceptance_length=1 + sum(found),
            per_position=found,
        )
        for dataset, found in rates.items()
    )
    return Arm(name=name, fingerprint=None, acceptance=acceptance, speeds=())


ARMS = (arm("baseline"), arm(service=(0.41, 0.16, 0.07), general=(0.2, 0.06), general__code=(0.33,)))


def rows(num_steps: int) -> list[dict[str, object]]:
    found: list[dict[str, object]] = [
        {
            "time": 1700000000.0 + step,
            "split": "train",
            "epoch": 0,
            "step": step,
            "lr": 6e-4,
            "loss": 9.0 - step / num_steps,
            "full_acc_0": 0.2,
            "full_acc_1": 0.1,
            "cond_acc_1": 0.5,
            "tokens_per_s": 780.0,
        }
        for step in range(num_steps)
    ]
    return [*found, {"split": "val", "epoch": 0, "step": num_steps, "loss": 8.5, "full_acc_0": 0.25}]


def test_training_picture_names_axes_and_positions() -> None:
    text = training_curves(rows(50)).decode()
    for words in ("training step", "loss [nats]", "accuracy [% of tokens]", "position 1", "position 2", "validation"):
        assert words in text
    assert "position 3" not in text


def test_a_picture_is_the_same_every_time() -> None:
    assert acceptance_per_position(ARMS) == acceptance_per_position(ARMS)


def test_pictures_stay_small_for_long_trainings() -> None:
    formats: tuple[Format, ...] = ("svg", "png")
    for image_format in formats:
        assert len(training_curves(rows(5_000), image_format)) < MAX_BYTES
        assert len(acceptance_per_position(ARMS, image_format)) < MAX_BYTES


def test_png_is_png_and_svg_is_svg() -> None:
    assert acceptance_per_position(ARMS, "png").startswith(b"\x89PNG")
    assert acceptance_per_position(ARMS).startswith(b"<?xml")


def test_acceptance_picture_shows_lengths_and_values_of_whole_sets() -> None:
    text = acceptance_per_position(ARMS).decode()
    for words in ("service (acceptance length 1.64)", "general (acceptance length 1.26)", ">41<", ">6<"):
        assert words in text
    assert ">33<" not in text


def test_two_measured_arms_are_told_apart() -> None:
    text = acceptance_per_position([*ARMS, arm("champion", service=(0.3,))]).decode()
    assert "service, draft (" in text
    assert "service, champion (" in text


def test_a_gap_in_the_metrics_does_not_spoil_the_picture() -> None:
    gaps = [{"split": "train", "step": step, "loss": loss} for step, loss in enumerate((None, 3.0, float("nan"), 2.0))]
    assert "nan" not in training_curves(gaps).decode().lower().split("</metadata>")[1]


@pytest.mark.parametrize("found", [[], [{"split": "train", "step": 1, "epoch": 0}], [{"split": "val", "loss": None}]])
def test_metrics_without_a_loss_are_refused(found: list[dict[str, object]]) -> None:
    with pytest.raises(EvidenceError, match="no training loss"):
        training_curves(found)


def test_a_picture_without_any_acceptance_is_refused() -> None:
    with pytest.raises(EvidenceError, match="none of the 1 arms was measured"):
        acceptance_per_position([arm("baseline")])


def test_importing_the_room_does_not_load_matplotlib() -> None:
    code = "import sys, tasks.bench.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_drawing_leaves_pyplot_alone() -> None:
    code = (
        "import sys; from tasks.bench.plots import training_curves; "
        "training_curves([{'split': 'train', 'step': 0, 'loss': 1.0}], 'png'); "
        "sys.exit('matplotlib' not in sys.modules or 'matplotlib.pyplot' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
