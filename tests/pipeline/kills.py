"""A production that is killed at chosen moments and continued: what was lost, and how long it took to go on.

Evidence is what lies in the embedded S3 server's data folder: an object that a manifest or a part manifest listed when
the kill came must still be the same bytes, written at the same time, when the production has ended.
"""

import json
import os
import signal
import time
from dataclasses import dataclass

import psutil

from tests.pipeline.production import LIMIT_S, POLL_S, Production, wait_for
from tests.pipeline.services import draftworks

# What the command line of a process holds; worker and s3 are named in the record of `draftworks up`.
MARKS = {"vllm": "vllm.entrypoints", "trainer": "tasks.drafting.trainer"}


@dataclass(frozen=True)
class Moment:
    """When to kill what: in a stage, once it has stored after_parts parts (shards, epochs), after_s seconds later.

    If the process is not there then, as soon as it is.
    """

    stage: str
    process: str
    after_parts: int
    after_s: float
    new_scratch: bool = False


@dataclass(frozen=True)
class Outcome:
    """What a kill cost."""

    moment: Moment
    stage: str
    """The stage that was really running."""
    lost_s: float
    """Seconds since the stage began or last stored something: work that had to be done again."""
    parts_kept: int
    """Stored parts of the artifact under way, which were not made again."""
    continued_s: float
    """Seconds from the kill until the production stored something new."""
    restarted: bool
    """Whether somebody had to start the recipe again; a retry of the stage needs nobody."""


def kill_at(production: Production, moment: Moment) -> Outcome:
    """Wait for a moment, kill -9 the process, continue, and record what it cost."""
    production.wait_for_stage(moment.stage)
    wait_for(lambda: production.parts(moment.stage) >= moment.after_parts, LIMIT_S, f"{moment} never came")
    time.sleep(moment.after_s)
    wait_for(lambda: victims(production, moment.process), LIMIT_S, f"{moment} found nothing to kill")
    stage, began = production.running_stage() or ("between two stages", time.time())
    before, parts, spent = production.listed(), production.parts(stage), production.part_seconds()
    killed = time.time()
    for pid in victims(production, moment.process):
        os.kill(pid, signal.SIGKILL)
    restarted = _continue(production, moment)
    limit = time.monotonic() + LIMIT_S
    while not production.listed().items() - before.items():
        assert time.monotonic() < limit, f"{moment} never continued: {production.said()}"
        if production.has_failed():
            production.start()
            restarted = True
        time.sleep(POLL_S)
    now = time.time()
    stored = max((written / 1e9 for written in before.values()), default=began)
    production.kept |= before
    production.spent |= spent
    return Outcome(moment, stage, killed - max(stored, began), parts, now - killed, restarted)


def victims(production: Production, process: str) -> list[int]:
    """Return the process ids that a kill of this name means."""
    if process in ("worker", "s3"):
        return [int(json.loads((production.home / "run" / "up.json").read_text())[process]["pid"])]
    if process == "flow" and production.process is not None:
        return [production.process.pid] if production.process.poll() is None else []
    found = []
    for candidate in psutil.process_iter():
        try:
            environment = candidate.environ()
            if environment.get("DRAFTWORKS_HOME") != str(production.home):
                continue
            line = " ".join(candidate.cmdline())
            if "lifeline.py" in line:
                continue  # the supervisor, which names what it supervises
            is_flow = process == "flow" and environment.get("PREFECT__FLOW_RUN_ID") == production.run
            if (is_flow and "prefect" in line) or (process in MARKS and MARKS[process] in line):
                found.append(candidate.pid)
        except psutil.Error:
            continue
    return found


def _continue(production: Production, moment: Moment) -> bool:
    """Do what a person would: bring services back, start the recipe again if its run is over."""
    if moment.process in ("worker", "s3"):
        back = draftworks(production.home, "up", timeout_s=300)
        assert back.returncode == 0, back.stdout + back.stderr
    if moment.process == "flow":
        wait_for(production.is_over, 300, "the killed run is still there")
        if moment.new_scratch:
            production.scratch = production.folder / f"scratch-{len(production.logs)}"
        production.start()
        return True
    return False
