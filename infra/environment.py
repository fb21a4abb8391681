"""The environment of the services: the few variables that matter, each with its reason."""

import os
from pathlib import Path

from tasks.process.ports import LOOPBACK

# Of the caller's own Prefect set-up nothing may reach ours: a key for another server, a profile, another database.
FOREIGN_PREFIX = "PREFECT_"
# What a person may still tune.
KEPT_PREFIXES = ("PREFECT_LOGGING_", "PREFECT_SERVER_DATABASE_", "PREFECT_SERVER_SERVICES_")
POOL = "gpu"  # the work pool of deployments/prefect.yaml
NO_TELEMETRY = {"DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
HEARTBEAT_S = 30  # the shortest that Prefect allows
WORKER_POLL_S = 2


def own_environment() -> dict[str, str]:
    """Return this process's environment without the parts of another Prefect set-up."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(FOREIGN_PREFIX) or name.startswith(KEPT_PREFIXES)
    }


def server_environment(home: Path, port: int) -> dict[str, str]:
    """Return the environment of the Prefect server: loopback, one SQLite file, nobody else's pages may read it."""
    return {
        **own_environment(),
        **NO_TELEMETRY,
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_API_URL": f"http://{LOOPBACK}:{port}/api",
        "PREFECT_SERVER_API_HOST": LOOPBACK,
        "PREFECT_SERVER_API_PORT": str(port),
        # Without these any web page in the person's browser could read and start things.
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"http://{LOOPBACK}:{port},http://localhost:{port}",
        "PREFECT_SERVER_API_CSRF_PROTECTION_ENABLED": "true",
        # The newer UI asks a third-party host at every page load.
        "PREFECT_SERVER_UI_V2_ENABLED": "false",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        # Beside the database, not inside the installed package, which may be read-only or shared.
        "PREFECT_SERVER_UI_STATIC_DIRECTORY": str(home / "prefect" / "ui"),
        # In memory, a slot held over a restart would stay taken for ever.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    }


def client_environment(home: Path, api_url: str) -> dict[str, str]:
    """Return what a command needs to find Prefect and its folder; no secret, so that it may be written down."""
    return {
        **NO_TELEMETRY,
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_API_URL": api_url,
        "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
        # Also for runs started from the command line: the automation takes a run that is silent for a dead one.
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_S),
        "DRAFTWORKS_HOME": str(home),
        **_no_proxy(),
    }


def worker_environment(client_env: dict[str, str], keys: dict[str, str]) -> dict[str, str]:
    """Return the environment of the worker, which every flow run inherits."""
    return {
        **own_environment(),
        **client_env,
        **keys,
        "PREFECT_WORKER_QUERY_SECONDS": str(WORKER_POLL_S),
    }


def _no_proxy() -> dict[str, str]:
    """Return the variables that keep calls to this machine away from a proxy; both spellings are in use."""
    already = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    hosts = [*filter(None, already.split(",")), LOOPBACK, "localhost"]
    return dict.fromkeys(("no_proxy", "NO_PROXY"), ",".join(dict.fromkeys(hosts)))
