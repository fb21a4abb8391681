"""Guards the metrics file: what is written for speculators' log messages, and how it reads after a resume."""

import json
import logging
from pathlib import Path

from tasks.drafting.metrics import MetricLines, read_metric_lines, to_metric_line

TRAIN = {
    "train": {"loss": 9.5, "full_acc_0": float("nan")},
    "profile": {"tokens_per_s": 700.0, "step_ms": 20.0, "memory_mb": {"fwd": 1.0}},
    "epoch": 1,
    "lr": {"Muon": 0.02, "AdamW": 0.001},
    "global_step": 7,
}


def test_a_training_message_becomes_one_flat_record() -> None:
    line = to_metric_line(TRAIN, 7)
    assert line is not None and line.pop("time") > 0
    assert line == {
        "split": "train",
        "epoch": 1,
        "step": 7,
        "lr": 0.02,
        "loss": 9.5,
        "full_acc_0": None,
        "tokens_per_s": 700.0,
        "step_ms": 20.0,
    }


def test_validation_names_lose_their_suffix_and_other_messages_are_left_out() -> None:
    line = to_metric_line({"val": {"loss_epoch": 1.0}, "epoch": 0}, 3)
    assert line is not None and line["loss"] == 1.0 and line["split"] == "val"
    assert to_metric_line({"seed": 1}, None) is None


def test_of_a_step_done_twice_the_later_counts_and_a_cut_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    logger = logging.Logger("metrics")
    for loss in (3.0, 2.0):
        handler = MetricLines(path)
        logger.addHandler(handler)
        logger.info({"train": {"loss": loss}, "epoch": 0}, extra={"step": 0})
        logger.info("not a metric")
        logger.removeHandler(handler)
        handler.close()
    path.write_text(path.read_text() + '{"split": "tr')
    assert [line["loss"] for line in read_metric_lines(path)] == [2.0]
    assert len([json.loads(text) for text in path.read_text().splitlines()[:2]]) == 2
    assert read_metric_lines(tmp_path / "absent") == []
