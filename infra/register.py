"""Register pool, deployments and the zombie automation with the Prefect server that PREFECT_API_URL names.

    PREFECT_API_URL=http://prefect:4200/api .venv/bin/python -m infra.register

`draftworks up` does the same for its own server; containers and clusters call this once per release of the code.
"""

import os
import sys
from pathlib import Path

from infra import pool
from tasks.errors import DraftworksError, RecipeError
from tasks.recipe.settings import PROJECT_ROOT

EXIT_IMPOSSIBLE = 2


def register(project: Path, env: dict[str, str]) -> None:
    """Register everything of the project; twice does no harm. env: of the command that deploys.

    Raises RecipeError: no server is named. CommandError: the server refused.
    """
    api_url = env.get("PREFECT_API_URL")
    if not api_url:
        raise RecipeError("PREFECT_API_URL names no server; it looks like http://prefect:4200/api")
    with pool.connect(api_url) as client:
        pool.ensure_pool(client)
        pool.deploy(project, env)
        pool.ensure_zombie_automation(client)


if __name__ == "__main__":
    try:
        register(PROJECT_ROOT, dict(os.environ))
    except DraftworksError as error:
        print(f"register: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(EXIT_IMPOSSIBLE)
