"""What a person sees while a stage runs: a progress bar, and a thinned-out log."""

import time
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.logging import get_run_logger

PROGRESS_EVERY_S = 5.0
LOG_PROGRESS_EVERY_S = 20.0
LOG_BURST_LINES = 50
LOG_LINES_PER_S = 5.0


class Progress:
    """A progress bar in the UI, updated at most every few seconds, and now and then a line in the log."""

    def __init__(self, name: str) -> None:
        """Show the bar at 0 %."""
        made = create_progress_artifact(progress=0.0, description=f"{name}: starting")
        assert isinstance(made, UUID)
        self._id = made
        self._name = name
        self._logger = get_run_logger()
        self._shown_at = 0.0
        self._logged_at = time.monotonic()

    def show(self, fraction: float, text: str = "") -> None:
        """Move the bar; fraction from 0 to 1."""
        now = time.monotonic()
        if fraction < 1 and now - self._shown_at < PROGRESS_EVERY_S:
            return
        self._shown_at = now
        if now - self._logged_at > LOG_PROGRESS_EVERY_S:
            self._logged_at = now
            self._logger.info("%s", text)
        update_progress_artifact(
            self._id, progress=round(100 * min(fraction, 1.0), 1), description=f"{self._name}: {text}"
        )

    def waiting(self, seconds: float) -> None:
        """Say that a server is starting."""
        self.show(0.0, f"vLLM server starts, {seconds:.0f} s so far")


class RunLog:
    """Passes a child's output on to the run's log, thinned out; the whole output stays in the child's log file."""

    def __init__(self) -> None:
        """Take the logger of the running stage."""
        self._logger = get_run_logger()
        self._budget = float(LOG_BURST_LINES)
        self._filled_at = time.monotonic()
        self._hidden = 0

    def line(self, text: str) -> None:
        """Log one line, or count it as not shown."""
        now = time.monotonic()
        self._budget = min(LOG_BURST_LINES, self._budget + (now - self._filled_at) * LOG_LINES_PER_S)
        self._filled_at = now
        if self._budget < 1:
            self._hidden += 1
            return
        self._budget -= 1
        if self._hidden:
            self._logger.info("... %d lines not shown", self._hidden)
            self._hidden = 0
        self._logger.info("%s", text)
