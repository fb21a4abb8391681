"""The door to httpx: its errors become ours, its bodies become JSON objects."""

import json

import httpx

from tasks.errors import RequestRejected, RequestUnanswered, ServerError

TRANSIENT_STATUS = frozenset({408, 409, 425, 429})  # and every 5xx
TRANSIENT = (httpx.TimeoutException, httpx.NetworkError, httpx.RemoteProtocolError, httpx.ProxyError)
SHOWN_CHARS = 500


def _shown(body: str) -> str:
    return body if len(body) <= SHOWN_CHARS else f"{body[:SHOWN_CHARS]}... ({len(body)} characters)"


def to_error(error: httpx.HTTPError | httpx.InvalidURL, what: str) -> ServerError:
    """Return our error for one of httpx's; what: the call, for the message."""
    if isinstance(error, httpx.HTTPStatusError):
        status = error.response.status_code
        message = f"{what} was answered with {status}: {_shown(error.response.text)}"
        if status in TRANSIENT_STATUS or status >= 500:
            return RequestUnanswered(message)
        if status == httpx.codes.UNAUTHORIZED:
            return RequestRejected(f"{message}. Set DRAFTWORKS_TARGET_API_KEY to the key that the server asks for.")
        return RequestRejected(message)
    reason = f"{type(error).__name__}{f': {error}' if str(error) else ''}"
    if isinstance(error, TRANSIENT):
        return RequestUnanswered(f"{what} got no answer ({reason})")
    # What is left is a URL or a request that cannot work, or a body that is not what its headers say.
    return RequestRejected(f"{what} cannot be carried out ({reason})")


def read_json(answer: httpx.Response, what: str) -> dict[str, object]:
    """Return the JSON object in a body. Raises ServerError: it is something else, so this is no vLLM server."""
    try:
        body = answer.json()
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ServerError(f"{what} was answered with something else than JSON: {_shown(answer.text)}") from error
    if not isinstance(body, dict):
        raise ServerError(f"{what} was answered with a JSON {type(body).__name__}, expected an object")
    return body
