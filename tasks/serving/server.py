"""Start and stop a vLLM server of our own."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx

from tasks.errors import RequestUnanswered, ServerDied, ServerError, ServerNotReady
from tasks.process.child import Child, Command
from tasks.process.ports import LOOPBACK, free_port, is_port_taken
from tasks.process.sweep import sweep_leftovers
from tasks.serving.endpoint import Endpoint, probe
from tasks.serving.last_words import LOG_LINES, last_words

POLL_S = 0.25
HEALTH_TIMEOUT_S = 2.0
GRACE_S = 10.0  # vLLM shuts its engine down in about 3 s


def _ended(child: Child, during: str) -> ServerError:
    """Return the error for a server that has ended by itself.

    A start that ends with a status (wrong arguments, an unsupported model, no memory for the cache) would end so again;
    a signal before, or any end after the server was ready, may pass.
    """
    status = child.exit_status()
    how = f"signal {-status}" if status is not None and status < 0 else f"exit status {status}"
    message = (
        f"the vLLM server ended {during} with {how}. Command: {child.command}. "
        f"Its whole output is in {child.log_path}; the last lines are\n{last_words(child.tail(LOG_LINES))}"
    )
    is_certain_to_repeat = during == "while starting" and status is not None and status >= 0
    return ServerError(message) if is_certain_to_repeat else ServerDied(message)


def _is_healthy(client: httpx.Client, url: str) -> bool:
    try:
        return client.get(url).status_code == httpx.codes.OK
    except (httpx.TimeoutException, httpx.NetworkError, httpx.RemoteProtocolError):
        return False


def _wait_ready(child: Child, port: int, deadline_s: float, on_wait: Callable[[float], None] | None) -> None:
    started = time.monotonic()
    with httpx.Client(timeout=HEALTH_TIMEOUT_S, trust_env=False) as client:
        while not _is_healthy(client, f"http://{LOOPBACK}:{port}/health"):
            waited = time.monotonic() - started
            if not child.is_running():
                raise _ended(child, "while starting")
            if waited > deadline_s:
                raise _too_late(child, deadline_s)
            if on_wait is not None:
                on_wait(waited)
            time.sleep(POLL_S)


def _too_late(child: Child, deadline_s: float) -> ServerNotReady:
    return ServerNotReady(
        f"the vLLM server did not answer within {deadline_s:g} s and was stopped. Command: {child.command}. "
        f"Raise DRAFTWORKS_SERVER_START_S if it needs longer. The last lines of {child.log_path} are\n"
        f"{last_words(child.tail(LOG_LINES))}"
    )


def _served_name(command: Command) -> str | None:
    argv = command.argv
    return argv[argv.index("--served-model-name") + 1] if "--served-model-name" in argv else None


def _on_port(command: Command, port: int) -> Command:
    return replace(command, argv=(*command.argv, "--host", LOOPBACK, "--port", str(port)))


def _choose_port(port: int | None) -> int:
    if port is None:
        return free_port()
    if is_port_taken(port):
        raise ServerError(f"port {port} on {LOOPBACK} is taken by another program. Stop it, or let a port be chosen.")
    return port


@contextmanager
def managed_server(
    command: Command,
    *,
    log_path: Path,
    start_deadline_s: float,
    run_folder: Path,
    port: int | None = None,
    on_wait: Callable[[float], None] | None = None,
) -> Iterator[Endpoint]:
    """Serve for the length of a with block; yields the endpoint when the server answers, stops the server at the end.

    command: from server_command. on_wait: called about 4 times a second with the seconds waited so far.
    run_folder: servers that a killed run left there are stopped first.
    Raises ServerError: it ended by itself while starting. ServerDied: it was killed, or ended when it had been ready;
    also for an error inside the block that its end explains. ServerNotReady: no answer within start_deadline_s.
    """
    sweep_leftovers(run_folder)
    chosen = _choose_port(port)
    with Child.start(_on_port(command, chosen), log_path, grace_s=GRACE_S, run_folder=run_folder) as child:

        def require_alive() -> None:
            if not child.is_running():
                raise _ended(child, "while it was needed")

        _wait_ready(child, chosen, start_deadline_s, on_wait)
        endpoint = probe(f"http://{LOOPBACK}:{chosen}/v1", _served_name(command), require_alive)
        require_alive()
        try:
            yield endpoint
        except RequestUnanswered as error:
            if child.is_running():
                raise
            raise _ended(child, "while it was needed") from error
