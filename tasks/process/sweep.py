"""What a killed owner may leave behind, and how the next start stops it.

Each running child has a record, RUN_FOLDER/running/<pid of its lifeline>.json:

    {"boot": "1f0c...", "argv": ["python", "-m", "..."],
     "owner":    {"pid": 41, "start": 8123, "program": "/usr/bin/python3.11"},
     "lifeline": {"pid": 57, "start": 8140, "program": "/usr/bin/python3.11"},
     "command":  {"pid": 58, "start": 8145, "program": "/opt/vllm/bin/python3.11"}}

A process is the recorded one only if boot, pid, start time and program file all agree; nothing is stopped by name.
"""

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tasks.process.lifeline import boot_id, describe

RECORDS = "running"
GRACE_S = 10.0  # between SIGTERM and SIGKILL for a command whose lifeline is gone
LIFELINE_WAIT_S = 30.0  # a lifeline whose owner is gone stops its command by itself: GRACE + 5 < 30
POLL_S = 0.05


def records_folder(run_folder: Path) -> Path:
    """Return the folder of the records below a run folder; it is made if missing."""
    folder = run_folder / RECORDS
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _is_alive(process: dict[str, Any] | None) -> bool:
    return process is not None and describe(process["pid"]) == process


def _wait_gone(process: dict[str, Any] | None, seconds: float) -> bool:
    limit = time.monotonic() + seconds
    while _is_alive(process) and time.monotonic() < limit:
        time.sleep(POLL_S)
    return not _is_alive(process)


def _stop_group(process: dict[str, Any]) -> None:
    """Stop the group that the live recorded command leads."""
    for number, seconds in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, 1.0)):
        if not _is_alive(process):
            return
        with suppress(ProcessLookupError):
            os.killpg(process["pid"], number)
        _wait_gone(process, seconds)


def stop_recorded(record_path: Path) -> list[str] | None:
    """Stop what is left of one record and remove it; return the argv that was stopped, None if nothing ran any more."""
    try:
        record = json.loads(record_path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None  # its lifeline has just ended by itself
    was_alive = record["boot"] == boot_id() and (_is_alive(record["lifeline"]) or _is_alive(record["command"]))
    if was_alive:
        if _is_alive(record["lifeline"]):
            with suppress(ProcessLookupError):
                os.kill(record["lifeline"]["pid"], signal.SIGTERM)
            if not _wait_gone(record["lifeline"], LIFELINE_WAIT_S):
                with suppress(ProcessLookupError):
                    os.kill(record["lifeline"]["pid"], signal.SIGKILL)
        if _is_alive(record["command"]):
            _stop_group(record["command"])
    record_path.unlink(missing_ok=True)
    return list(record["argv"]) if was_alive else None


def sweep_leftovers(run_folder: Path) -> list[list[str]]:
    """Stop every recorded child whose owner is gone; return their command lines.

    Children of an owner that still runs are left alone, so two runs may share a folder.
    """
    stopped = []
    for record_path in sorted((run_folder / RECORDS).glob("*.json")):
        try:
            record = json.loads(record_path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        if record["boot"] == boot_id() and _is_alive(record["owner"]):
            continue
        argv = stop_recorded(record_path)
        if argv is not None:
            stopped.append(argv)
    return stopped
