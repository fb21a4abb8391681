"""Does a service answer? Cheap questions over HTTP, asked before anything heavy is imported."""

import httpx

ANSWER_LIMIT_S = 5.0


def is_prefect_healthy(api_url: str | None) -> bool:
    """Return whether a Prefect server answers at that address."""
    return api_url is not None and _answers(f"{api_url}/health")


def is_s3_answering(endpoint: str | None) -> bool:
    """Return whether the embedded S3 server answers at that address; it asks for no signature."""
    return endpoint is not None and _answers(endpoint)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=ANSWER_LIMIT_S, trust_env=False).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False
