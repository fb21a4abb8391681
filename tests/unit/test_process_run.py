"""Guards that a command run to its end streams its lines, keeps its deadlines and leaves nothing behind."""

import sys
import time
from pathlib import Path

import pytest

from tasks.errors import CommandError, CommandKilled, DeadlinePassed
from tasks.process.child import Command
from tasks.process.lifeline import describe
from tasks.process.ports import free_port, is_port_taken
from tasks.process.run import run_to_end


def python(code: str) -> Command:
    return Command((sys.executable, "-c", code))


def test_every_line_arrives_once_and_in_order(tmp_path: Path) -> None:
    seen: list[str] = []
    code = "for i in range(20000): print(i)\nprint('end', end='')"
    run_to_end(python(code), tmp_path / "log", deadline_s=60, silent_s=60, on_line=seen.append)
    assert seen == [*map(str, range(20000)), "end"]


def test_a_status_is_an_error_with_the_end_of_the_log(tmp_path: Path) -> None:
    with pytest.raises(CommandError) as caught:
        run_to_end(python("print('bad thing'); exit(3)"), tmp_path / "log", deadline_s=60, silent_s=60)
    assert caught.value.exit_status == 3
    assert caught.value.log_tail == "bad thing"
    assert "exit status 3" in str(caught.value) and str(tmp_path / "log") in str(caught.value)
    assert not isinstance(caught.value, DeadlinePassed)


@pytest.mark.parametrize(
    ("code", "deadline_s", "silent_s", "message"),
    [
        ("import os,time; print(os.getpid()); time.sleep(99)", 60.0, 3.0, "put out nothing for 3 s"),
        ("import os,time\nwhile True: print(os.getpid()); time.sleep(.05)", 3.0, 60.0, "ran for more than 3 s"),
        ("import os,time\nwhile True: print(os.getpid())", 3.0, 60.0, "ran for more than 3 s"),
    ],
)
def test_a_deadline_stops_the_command(
    tmp_path: Path, code: str, deadline_s: float, silent_s: float, message: str
) -> None:
    started = time.monotonic()
    with pytest.raises(DeadlinePassed, match=message) as caught:
        run_to_end(python(code), tmp_path / "log", deadline_s=deadline_s, silent_s=silent_s)
    assert time.monotonic() - started < 20
    assert describe(int(caught.value.log_tail.splitlines()[-1])) is None


def test_a_command_that_was_killed_may_be_tried_again(tmp_path: Path) -> None:
    killed = python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(CommandKilled, match="ended with signal 9") as caught:
        run_to_end(killed, tmp_path / "log", deadline_s=60, silent_s=60)
    assert caught.value.exit_status == -9


def test_an_exception_from_outside_stops_the_command(tmp_path: Path) -> None:
    class Interrupted(BaseException):
        pass

    pids = []

    def interrupt(line: str) -> None:
        pids.append(int(line))
        raise Interrupted

    code = "import os,time; print(os.getpid()); time.sleep(99)"
    with pytest.raises(Interrupted):
        run_to_end(python(code), tmp_path / "log", deadline_s=60, silent_s=60, on_line=interrupt)
    assert describe(pids[0]) is None


def test_a_free_port_is_not_taken() -> None:
    assert not is_port_taken(free_port())
