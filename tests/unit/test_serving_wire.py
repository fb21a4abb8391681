"""Guards that every error of httpx has a translation, and which of them are worth another try."""

import httpx
import pytest

from tasks.errors import RequestRejected, RequestUnanswered, TransientError
from tasks.serving.wire import to_error

TRANSIENT = {
    *("TimeoutException", "ConnectTimeout", "ReadTimeout", "WriteTimeout", "PoolTimeout"),
    *("NetworkError", "ConnectError", "ReadError", "WriteError", "CloseError"),
    *("ProxyError", "RemoteProtocolError"),
}
PERMANENT = {"UnsupportedProtocol", "LocalProtocolError", "DecodingError", "TooManyRedirects"}
BY_STATUS = {"HTTPStatusError"}
ABSTRACT = {"TransportError", "RequestError", "ProtocolError"}  # never raised themselves


def below(kind: type[Exception]) -> set[str]:
    names = set()
    for child in kind.__subclasses__():
        if child.__module__.startswith("httpx"):
            names |= {child.__name__} | below(child)
    return names


def test_every_error_of_httpx_is_in_a_list() -> None:
    assert below(httpx.HTTPError) == (TRANSIENT | PERMANENT | BY_STATUS | ABSTRACT)


@pytest.mark.parametrize("name", sorted(TRANSIENT))
def test_transport_errors_are_transient(name: str) -> None:
    ours = to_error(getattr(httpx, name)("cause"), "POST /x")
    assert type(ours) is RequestUnanswered
    assert str(ours) == f"POST /x got no answer ({name}: cause)"


@pytest.mark.parametrize(
    "error", [*(getattr(httpx, name)("cause") for name in sorted(PERMANENT)), httpx.InvalidURL("x")]
)
def test_errors_of_the_call_itself_are_permanent(error: httpx.HTTPError) -> None:
    assert type(to_error(error, "POST /x")) is RequestRejected


@pytest.mark.parametrize("status", range(400, 600))
def test_statuses_are_told_apart(status: int) -> None:
    request = httpx.Request("POST", "http://127.0.0.1/x")
    error = httpx.HTTPStatusError("x", request=request, response=httpx.Response(status, text="why", request=request))
    ours = to_error(error, "POST /x")
    assert isinstance(ours, TransientError) == (status in {408, 409, 425, 429} or status >= 500)
    mend = ". Set DRAFTWORKS_TARGET_API_KEY to the key that the server asks for." if status == 401 else ""
    assert str(ours) == f"POST /x was answered with {status}: why{mend}"
