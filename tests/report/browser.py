"""A headless Chromium driven by chromedriver's own HTTP interface (the W3C's WebDriver)."""

import base64
import http.client
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from strandline.errors import PortTaken
from strandline.stack.ports import free_port, retry_when_taken
from tests.support import TIMEOUT, wait_for

_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
_MISSING = (
    "the report's page is tested in a real browser; install one, on Debian: apt-get install chromium chromium-driver"
)


class Browser:
    """One window. Use it as a context."""

    @staticmethod
    def missing() -> str | None:
        """What to do where there is no browser."""
        return None if shutil.which("chromedriver") and shutil.which("chromium") else _MISSING

    def __enter__(self) -> Self:
        self._profile = tempfile.mkdtemp(prefix="strandline-browser-")
        self._driver, self._port = retry_when_taken(_started_driver)
        arguments = ["--headless=new", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={self._profile}"]
        # Chromium's own sandbox works neither for root nor in most containers; the pages are ours.
        options = {"binary": shutil.which("chromium"), "args": [*arguments, "--no-sandbox", "--disable-dev-shm-usage"]}
        capabilities = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            # An unexpected dialog stays, so that a test can see that there was one.
            "unhandledPromptBehavior": "ignore",
        }
        try:
            answer = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
        except BaseException:
            self._end()
            raise
        self._session = f"/session/{answer['sessionId']}"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._ask("DELETE", self._session)
        finally:
            self._end()

    def _end(self) -> None:
        self._driver.terminate()
        self._driver.wait(TIMEOUT)
        assert self._driver.stdout is not None
        self._driver.stdout.close()
        shutil.rmtree(self._profile, ignore_errors=True)

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT)
        try:
            connection.request(method, path, None if method != "POST" else json.dumps(body or {}))
            answer = json.loads(connection.getresponse().read())["value"]
        finally:
            connection.close()
        if isinstance(answer, dict) and "error" in answer:
            raise RuntimeError(f"{answer['error']}: {answer['message'].splitlines()[0]}")
        return answer

    def devtools(self, command: str, **parameters: object) -> Any:
        """One command of the DevTools protocol."""
        return self._ask("POST", f"{self._session}/goog/cdp/execute", {"cmd": command, "params": parameters})

    def open(self, address: str) -> None:
        """Goes to an address, on a page of its own even if only the fragment differs from the last."""
        self._ask("POST", f"{self._session}/url", {"url": "about:blank"})
        self._ask("POST", f"{self._session}/url", {"url": address})

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """The size of the page, and the colours that its reader prefers."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.devtools("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        # A page that is still scrolling takes a click at the wrong place.
        motion = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.devtools("Emulation.setEmulatedMedia", features=[scheme, motion])

    @contextmanager
    def without_scripts(self) -> Iterator[None]:
        """Pages opened meanwhile run none."""
        self.devtools("Emulation.setScriptExecutionDisabled", value=True)
        try:
            yield
        finally:
            self.devtools("Emulation.setScriptExecutionDisabled", value=False)

    def run(self, script: str, *arguments: object) -> Any:
        """What a function's body returns in the page."""
        return self._ask("POST", f"{self._session}/execute/sync", {"script": script, "args": list(arguments)})

    def until(self, script: str, *arguments: object) -> Any:
        """What it returns once that is something."""
        return wait_for(lambda: self.run(script, *arguments), script)

    def texts(self, selector: str) -> list[str]:
        """The text of each such element as it is shown; empty for those that are not."""
        text = "(element) => (element.checkVisibility() ? element.innerText ?? element.textContent : '').trim()"
        return [
            str(text) for text in self.run(f"return [...document.querySelectorAll(arguments[0])].map({text})", selector)
        ]

    def click(self, selector: str) -> None:
        """A click as a person makes it, at what is really there."""
        self._ask("POST", f"{self._session}/element/{self._element(selector)}/click")

    def type(self, selector: str, text: str) -> None:
        """Keys, into an element that is cleared first."""
        element = self._element(selector)
        self._ask("POST", f"{self._session}/element/{element}/clear")
        self._ask("POST", f"{self._session}/element/{element}/value", {"text": text})

    def press(self, key: str) -> None:
        """A key, to whatever has the focus."""
        keys = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        self._ask("POST", f"{self._session}/actions", {"actions": [{"type": "key", "id": "keys", "actions": keys}]})

    def _element(self, selector: str) -> str:
        found = self._ask("POST", f"{self._session}/element", {"using": "css selector", "value": selector})
        return str(found[_ELEMENT])

    def dialog(self) -> str | None:
        """The text of a dialog that a script has opened."""
        try:
            return str(self._ask("GET", f"{self._session}/alert/text"))
        except RuntimeError as error:
            if str(error).startswith("no such alert"):
                return None
            raise

    def console(self) -> list[str]:
        """What the page has complained of since the last call."""
        return [entry["message"] for entry in self._log("browser") if entry["level"] in {"WARNING", "SEVERE"}]

    def requests(self) -> list[str]:
        """What was asked for since the last call, but for the page, what lies in it, and the browser's own."""
        events = [json.loads(entry["message"])["message"] for entry in self._log("performance")]
        asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
        return [address for address in asked if not address.startswith(("file:", "data:", "about:", "chrome:"))]

    def _log(self, kind: str) -> list[Any]:
        return list(self._ask("POST", f"{self._session}/se/log", {"type": kind}))

    def screenshot(self, path: Path) -> None:
        """The window as a PNG."""
        shot = self.devtools("Page.captureScreenshot")
        path.write_bytes(base64.b64decode(shot["data"]))


def _started_driver() -> "tuple[subprocess.Popen[str], int]":
    """A chromedriver that listens, and its port.

    With `--port=0` it takes a free port of IPv6 and ends where some connection has that number in IPv4.
    """
    port = free_port()
    driver = subprocess.Popen(
        ["chromedriver", f"--port={port}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert driver.stdout is not None
    said = []
    for line in driver.stdout:
        if "started successfully on port " in line:
            return driver, port
        said.append(line)
    driver.wait(TIMEOUT)
    driver.stdout.close()
    if any("port not available" in line for line in said):
        raise PortTaken(f"port {port} is taken")
    raise RuntimeError(f"chromedriver ended before it listened: {''.join(said)}")
