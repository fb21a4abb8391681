"""Guards what a person does in the browser: fill the form, start a run, watch it end, open its page.

With DRAFTWORKS_SCREENSHOTS set to a folder, the pictures of the README are made there.
"""

import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.services import Server, tiny

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(CHROMIUM is None, reason="Debian's chromium is not installed and could not be"),
]
LOAD_MS = 60_000


@pytest.fixture
def page() -> Iterator[Any]:
    """Give a page of a browser that can reach nothing but this machine."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"],
        )
        opened = browser.new_page(viewport={"width": 1280, "height": 1000})
        opened.set_default_timeout(LOAD_MS)
        yield opened
        browser.close()


def field(page: Any, label: str) -> Any:
    """Return the input of a form field; the form does not tie its labels to its inputs."""
    named = page.locator(".schema-form-property__label", has_text=re.compile(rf"^{label}( \(Optional\))?$"))
    return page.locator(".p-label").filter(has=named).last.locator("input, textarea").first


def picture(page: Any, name: str, tmp_path: Path) -> None:
    folder = Path(os.environ.get("DRAFTWORKS_SCREENSHOTS", tmp_path))
    page.screenshot(path=folder / f"{name}.png")


def newest_run(server: Server, deployment: str, after: set[str]) -> str:
    asked = {"deployments": {"id": {"any_": [deployment]}}, "sort": "EXPECTED_START_TIME_DESC", "limit": 20}
    limit = time.monotonic() + 60
    while not (new := [run["id"] for run in server.post("/flow_runs/filter", asked) if run["id"] not in after]):
        assert time.monotonic() < limit, "the form started no run"
        time.sleep(0.5)
    return str(new[0])


def test_a_run_is_started_from_the_form_and_its_page_opens(
    server: Server, page: Any, incoming: Path, tmp_path: Path
) -> None:
    ui = server.url.removesuffix("/api")
    deployment = server.deployment("produce-draft")["id"]
    server.set_parameters("produce-draft", {"recipe": tiny(incoming)})
    asked = {"deployments": {"id": {"any_": [deployment]}}, "limit": 20}
    before = {run["id"] for run in server.post("/flow_runs/filter", asked)}

    page.goto(f"{ui}/deployments/deployment/{deployment}/run")
    field(page, "Epochs").fill("0")
    page.get_by_role("button", name="Submit").click()
    page.get_by_text("0 is less than the minimum of 1").first.wait_for()
    field(page, "Epochs").fill("7")
    field(page, "Name").fill("from-the-form")
    picture(page, "form", tmp_path)
    page.get_by_role("button", name="Submit").click()

    run = newest_run(server, deployment, before)
    page.goto(f"{ui}/runs/flow-run/{run}")
    assert server.wait(run, 900) == "COMPLETED", server.logs(run)
    page.goto(f"{ui}/runs/flow-run/{run}")
    page.get_by_text("Completed").first.wait_for()
    assert page.get_by_text("from-the-form-").first.is_visible()
    parameters = server.get(f"/flow_runs/{run}")["parameters"]["recipe"]
    assert (parameters["name"], parameters["training"]["epochs"]) == ("from-the-form", 7)

    summary = next(found for found in server.artifacts(run) if found["key"] == "run-summary")
    page.set_viewport_size({"width": 1280, "height": 1900})
    page.goto(f"{ui}/artifacts/artifact/{summary['id']}")
    page.get_by_role("heading", name="Acceptance").wait_for()
    plots = page.locator("img[src^='data:image/svg+xml']")
    assert plots.count() == 2
    assert all(plots.nth(n).evaluate("image => image.naturalWidth > 300") for n in range(2))
    picture(page, "run-page", tmp_path)
