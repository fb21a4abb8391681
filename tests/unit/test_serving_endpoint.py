"""Guards attaching to a running server: what is accepted, and how each refusal is told apart."""

from typing import Any

import pytest

from tasks.errors import ServerError, ServerNotReady
from tasks.process.ports import free_port
from tasks.serving.endpoint import Endpoint, attach
from tests.unit.test_serving_client import CHAT, StandIn, ask, chat

VERSION = (200, {"version": "0.32.0"})


def models(*names: str) -> tuple[int, Any]:
    return (200, {"object": "list", "data": [{"id": name, "parent": None} for name in names]})


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/"])
def test_a_server_is_attached_with_or_without_v1(ending: str) -> None:
    with StandIn(paths={"/v1/models": models("m"), "/version": VERSION}) as server:
        root = server.base_url.removesuffix("/v1")
        endpoint = attach(root + ending)
    assert endpoint == Endpoint(f"{root}/v1", "m", "0.32.0")
    assert endpoint.root_url == root


def test_a_key_travels_with_every_request_and_is_never_shown() -> None:
    with StandIn((200, CHAT), paths={"/v1/models": models("m"), "/version": VERSION}) as server:
        endpoint = attach(server.base_url, api_key="sesame")
        ask(endpoint, chat)
        assert server.keys == ["Bearer sesame"] * 3
    assert "sesame" not in repr(endpoint)


def test_a_server_that_wants_a_key_is_told_apart() -> None:
    paths = {"/v1/models": (401, '{"error": "Unauthorized"}'), "/version": VERSION}
    with StandIn(paths=paths) as server, pytest.raises(ServerError, match="Set DRAFTWORKS_TARGET_API_KEY"):
        attach(server.base_url)


def test_an_adapter_is_not_another_model() -> None:
    listing = (200, {"data": [{"id": "m", "parent": None}, {"id": "adapter", "parent": "m"}]})
    with StandIn(paths={"/v1/models": listing, "/version": VERSION}) as server:
        assert attach(server.base_url).model == "m"


def test_one_of_several_names_can_be_chosen() -> None:
    with StandIn(paths={"/v1/models": models("a", "b"), "/version": VERSION}) as server:
        assert attach(server.base_url, "b").model == "b"
        with pytest.raises(ServerError, match="several models, a, b"):
            attach(server.base_url)
        with pytest.raises(ServerError, match="serves a, b, expected c"):
            attach(server.base_url, "c")


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ({}, "answered with 404"),
        ({"/v1/models": (200, "<html>")}, "something else than JSON"),
        ({"/v1/models": models("m")}, "version was answered with 404"),
        ({"/v1/models": models("m"), "/version": (200, {})}, "not like vLLM: version None"),
        ({"/v1/models": models(), "/version": VERSION}, r"models \[\]"),
        ({"/v1/models": (401, "Unauthorized"), "/version": VERSION}, "answered with 401: Unauthorized"),
    ],
)
def test_something_else_than_vllm_is_permanent_and_said(paths: dict[str, Any], message: str) -> None:
    with StandIn(paths=paths) as server, pytest.raises(ServerError, match=message) as caught:
        attach(server.base_url)
    assert type(caught.value) is ServerError
    assert "http://127.0.0.1:8000/v1" in str(caught.value)


def test_nobody_answering_is_transient() -> None:
    with pytest.raises(ServerNotReady, match="no vLLM server answers at .*ConnectError.*Start it"):
        attach(f"http://127.0.0.1:{free_port()}")


def test_a_url_of_another_kind_is_refused() -> None:
    with pytest.raises(ServerError, match="is not an http or https URL"):
        attach("localhost:8000")
