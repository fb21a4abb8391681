"""Start one daemon in a session of its own and print its process id. A script; standard library only.

    python -I -S detach.py LOG_FILE WORKING_FOLDER -- COMMAND [ARGUMENT ...]

The daemon is nobody's child: it outlives the command that asked for it, and leaves no zombie in it. SIGINT and SIGTERM
have their default meaning again, whatever a shell's & has set: a Prefect worker that inherits an ignored SIGINT cannot
be stopped. Exit status 127: COMMAND could not be started.
"""

import os
import signal
import subprocess
import sys


def main(argv: list[str]) -> int:
    """Run the command line in the module's docstring."""
    log_path, folder, dashes, *command = argv[1:]
    assert dashes == "--"
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with open(log_path, "wb") as log:
            daemon = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)  # noqa: T201
        return 127
    print(daemon.pid, flush=True)  # noqa: T201
    # Ends here and now: a Popen object that is collected while its process runs complains.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
