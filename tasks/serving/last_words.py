"""The lines at the end of a vLLM log that say why it ended.

When an engine cannot start, three processes print tracebacks one after another, innermost cause first, each line with
a prefix; compiled extensions then complain about leaks. So the cause may stand 150 lines before the end:

    (Worker pid=1) ERROR 11-29 22:37:32 [multiproc_executor.py:953]   File "...", line 1208, in safetensors_weights
    (Worker pid=1) ERROR 11-29 22:37:32 [multiproc_executor.py:953]     with safe_open(st_file, framework="pt") as f:
    (Worker pid=1) ERROR 11-29 22:37:32 [multiproc_executor.py:953] SafetensorError: header too large

The frames and the complaints are left out here; the log file keeps them.
"""

import re

LOG_LINES = 400
SHOWN_LINES = 40
PREFIX = re.compile(r"^\(\S+ pid=\d+\) [A-Z]+ \S+ \S+ \[[^\]]*\] ")
FRAME = re.compile(r" {2,}File \"| {4,}")  # a place in a traceback; its source line, or the marks below it
EXIT_NOISE = ("nanobind: ", " - leaked ", " - ... skipped")


def last_words(log_tail: str) -> str:
    """Return the last telling lines of the end of a log."""
    telling = [
        line
        for line in log_tail.splitlines()
        if not FRAME.match(PREFIX.sub("", line)) and not line.startswith(EXIT_NOISE)
    ]
    return "\n".join(telling[-SHOWN_LINES:])
