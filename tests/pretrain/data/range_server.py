"""An HTTP server with Range requests on loopback, slow and faulty on demand."""

import threading
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

Fault = Literal["drop", "500", "404", "403", "truncate", "corrupt", "204", "short", "elsewhere", "trickle"] | None


class RangeServer(ThreadingHTTPServer):
    """Serves `folder`; `fault` names the fault of a request, given its path and how often that path was asked for.

    Attributes:
        requests: number of requests per path.
        login: `user:password` that every request must give. query: likewise, what follows `?` in its address.
    """

    daemon_threads = True
    request_queue_size = 128  # with the default 5, a busy machine resets connections, which are then asked for again

    def __init__(self, folder: Path, rate: float, delay: float) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.rate, self.delay = folder, rate, delay
        self.fault: Callable[[str, int], Fault] = lambda path, count: None
        self.requests: Counter[str] = Counter()
        self.login, self.query = "", ""
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Stays silent about clients that were killed."""


class Handler(BaseHTTPRequestHandler):
    server: RangeServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer waits 40 ms for the client to confirm its header

    def do_GET(self) -> None:
        server, (address, _, query) = self.server, self.path.partition("?")
        name = unquote(address.lstrip("/"))
        server.requests[name] += 1
        fault = server.fault(name, server.requests[name])
        time.sleep(server.delay)
        path = server.folder / name
        if fault == "drop":
            self.close_connection = True
            return
        login = b64decode(self.headers.get("Authorization", "").removeprefix("Basic ")).decode()
        if (login, query) != (server.login, server.query):
            self.send_error(401)
            return
        if fault in ("500", "404", "403") or not path.is_file():
            self.send_error(int(fault) if fault else 404)
            return
        if fault in ("204", "elsewhere"):
            self.send_response(204 if fault == "204" else 302)
            self.send_header("Location", "file:///etc/passwd")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        content, asked = path.read_bytes(), self.headers.get("Range")
        if asked:
            first, last = (int(part) for part in asked.removeprefix("bytes=").split("-"))
            content = content[first : last + 1]
        if fault == "corrupt":
            content = bytes([content[0] ^ 1]) + content[1:]
        if fault == "short":
            content = content[: len(content) // 2]
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        for byte in content if fault == "trickle" else b"":
            self.wfile.write(bytes([byte]))
            time.sleep(0.5)
        self.wfile.write(content[: len(content) // 2] if fault == "truncate" else content)
        time.sleep(len(content) / server.rate)
        self.close_connection = fault == "truncate"

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""


@contextmanager
def serving(folder: Path, rate: float = 20e6, delay: float = 0.05) -> Iterator[RangeServer]:
    """Serves a folder at `rate` bytes per second and connection, each answer `delay` seconds late."""
    server = RangeServer(folder, rate, delay)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield server
    server.fault = lambda path, count: "drop"  # on connections that clients keep, too
    server.shutdown()
    server.server_close()
