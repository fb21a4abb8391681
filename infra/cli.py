"""The command line: `draftworks --help`.

Exit status: 0 pass or done, 1 a check failed or the gate said no, 2 it could not be done (one message on stderr).
"""

import sys
from typing import Annotated

import typer

from infra import check, doctor, gc, produce, updown
from tasks.errors import DraftworksError

EXIT_IMPOSSIBLE = 2

app = typer.Typer(
    name="draftworks",
    help="A factory for speculative-decoding draft models that fit a vLLM deployment and stay fresh.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for part in (produce, updown, check, doctor, gc):
    part.register(app)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(version("draftworks"))
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Hold the options that stand before a command."""


def main() -> None:
    """Run the command line; every error of ours is one message and exit status 2."""
    try:
        app()
    except DraftworksError as error:
        print(f"draftworks: {error}", file=sys.stderr)
        sys.exit(EXIT_IMPOSSIBLE)


if __name__ == "__main__":
    main()
