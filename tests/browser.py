"""A real browser, Chromium without a window, driven over its debugging pipe."""

import json
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tests.conftest import SEARCH_PATH


class Browser:
    """One page; a message is JSON that ends with a zero byte."""

    def __init__(self, profile: Path) -> None:
        there, self._send = os.pipe()
        self._receive, back = os.pipe()
        self._count, self._unread = 0, b""
        self._session: dict[str, str] = {}
        program = str(shutil.which("chromium", path=SEARCH_PATH))
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
        ]
        files = [
            (os.POSIX_SPAWN_DUP2, there, 3),  # the numbers that Chromium expects
            (os.POSIX_SPAWN_DUP2, back, 4),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ]
        self._process = os.posix_spawn(program, [program, *options, "about:blank"], os.environ, file_actions=files)
        os.close(there)
        os.close(back)
        targets = self.call("Target.getTargets")["targetInfos"]
        (page,) = [target["targetId"] for target in targets if target["type"] == "page"]
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(EOFError):
            self._session = {}
            self.call("Browser.close")
        os.waitpid(self._process, 0)
        os.close(self._send)
        os.close(self._receive)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a method of the DevTools protocol."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters, **self._session}
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._unread:
                if not (more := os.read(self._receive, 2**20)):
                    raise EOFError("chromium has ended")
                self._unread += more
            line, _, self._unread = self._unread.partition(b"\0")
            answer = json.loads(line)
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def run(self, script: str) -> Any:
        """The value of an expression on the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, script: str) -> Any:
        """The value of an expression as soon as it is true."""
        end = time.monotonic() + 60
        while not (value := self.run(script)):
            assert time.monotonic() < end, f"{script} never came true on\n{self.run('document.body.innerText')}"
            time.sleep(0.05)
        return value

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)
        self.wait_for(f"location.href == {json.dumps(address)} && document.readyState == 'complete'")

    def click(self, element: str) -> None:
        """Clicks with the mouse in the middle of an element, an expression on the page."""
        self.run(f"{element}.scrollIntoView({{block: 'center'}})")
        box = f"(r => [r.x + r.width / 2, r.y + r.height / 2])({element}.getClientRects()[0])"
        x, y = self.run(box)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)
