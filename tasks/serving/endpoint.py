"""A vLLM server that answers: one that we started, or one that was running already (attach)."""

from collections.abc import Callable
from dataclasses import dataclass, field

import httpx

from tasks.errors import RequestUnanswered, ServerError, ServerNotReady
from tasks.serving.wire import read_json, to_error

PROBE_TIMEOUT_S = 10.0
REMEDY = "Give the base URL of a running vLLM server, such as http://127.0.0.1:8000/v1"


def _never_watched() -> None:
    """Stand for the watch over a process, where there is none of ours."""


@dataclass(frozen=True)
class Endpoint:
    """Where requests go, and what answers there."""

    base_url: str
    """URL up to and with /v1."""
    model: str
    """Name that requests call the model by."""
    version: str
    """vLLM's version."""
    require_alive: Callable[[], None] = field(default=_never_watched, compare=False, repr=False)
    """Raises ServerDied if the server is a process of ours and has ended."""
    api_key: str | None = field(default=None, compare=False, repr=False)
    """Key of a server that asks for one."""

    @property
    def root_url(self) -> str:
        """Return the URL without /v1, where /health and /metrics are."""
        return self.base_url.removesuffix("/v1")

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers that every request carries."""
        return authorization(self.api_key)


def authorization(api_key: str | None) -> dict[str, str]:
    """Return the header that carries a key, none without one."""
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def _get(client: httpx.Client, url: str) -> dict[str, object]:
    try:
        answer = client.get(url)
        answer.raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise to_error(error, f"GET {url}") from error
    return read_json(answer, f"GET {url}")


def _base_models(listing: dict[str, object]) -> list[str]:
    """Return the names of served models, without the adapters on them."""
    rows = listing.get("data")
    cards = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return [str(card["id"]) for card in cards if "id" in card and not card.get("parent")]


def probe(
    base_url: str,
    model: str | None = None,
    require_alive: Callable[[], None] = _never_watched,
    api_key: str | None = None,
) -> Endpoint:
    """Return the endpoint at base_url. model: which of several served names is meant.

    Raises RequestUnanswered: no answer. ServerError: not vLLM, or not exactly one model to choose.
    """
    root = base_url.removesuffix("/v1")
    with httpx.Client(timeout=PROBE_TIMEOUT_S, trust_env=False, headers=authorization(api_key)) as client:
        listing = _get(client, f"{base_url}/models")
        version = _get(client, f"{root}/version").get("version")
    names = _base_models(listing)
    if not isinstance(version, str) or not names:
        raise ServerError(
            f"{base_url} answers, but not like vLLM: version {version!r}, models {names}. {REMEDY}, without a gateway."
        )
    if model is None and len(names) > 1:
        raise ServerError(f"{base_url} serves several models, {', '.join(names)}: the target must be its only model.")
    if model is not None and model not in names:
        raise ServerError(f"{base_url} serves {', '.join(names)}, expected {model}.")
    return Endpoint(base_url, model or names[0], version, require_alive, api_key)


def attach(url: str, model: str | None = None, api_key: str | None = None) -> Endpoint:
    """Return the endpoint of a server that is running already; url with or without /v1.

    Raises ServerNotReady: nobody answers. ServerError: something else than vLLM answers, or several models are served.
    """
    if not url.startswith(("http://", "https://")):
        raise ServerError(f"{url!r} is not an http or https URL. {REMEDY}.")
    base_url = url.rstrip("/").removesuffix("/v1").rstrip("/") + "/v1"
    try:
        return probe(base_url, model, api_key=api_key)
    except RequestUnanswered as error:
        raise ServerNotReady(
            f"no vLLM server answers at {base_url}: {error}. Start it, or check the address."
        ) from error
    except ServerError as error:
        raise ServerError(f"{base_url} cannot be used: {error} {REMEDY}.") from error
