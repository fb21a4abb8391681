"""The commands `draftworks up` and `draftworks down`. Prefect is imported inside them: the command line stays light."""

from typing import Annotated

import typer

from tasks.recipe.settings import load_settings


def register(app: typer.Typer) -> None:
    """Add up and down to the command line."""
    app.command()(up)
    app.command()(down)


def up(
    port: Annotated[int | None, typer.Option(help="Port of the Prefect server; default: 4200, or a free one.")] = None,
    s3_port: Annotated[int | None, typer.Option(help="Port of the S3 server; default: 9000, or a free one.")] = None,
) -> None:
    """Start the S3 server, the Prefect server and a worker; register the deployments; print the address."""
    from infra import services

    settings = load_settings()
    running = services.up(
        services.UpRequest(
            home=settings.home_dir,
            bucket=settings.s3_bucket,
            s3_endpoint=settings.s3_endpoint,
            prefect_port=port,
            s3_port=s3_port,
            say=typer.echo,
        )
    )
    typer.echo(running.ui_url)


def down() -> None:
    """Cancel what runs, then stop exactly what `up` started."""
    from infra import shutdown

    stopped = shutdown.down(load_settings().home_dir, typer.echo)
    typer.echo(f"stopped: {', '.join(stopped)}" if stopped else "nothing was up")
