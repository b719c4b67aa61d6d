"""Claims about uploads to the hub, tried against a stand-in on this machine that speaks the part of its protocol that
an upload needs: the hub's own client sends, and the stand-in keeps what it receives. Large files go by Git LFS.
"""

import base64
import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from tests.conftest import REPOSITORY
from tests.pretrain.test_export import untouched_run

CARD = "---\nlicense: mit\nlanguage: en\n---\n\n# A model\n"
PUSH = """
import sys
from pathlib import Path
from foundation.command_line import run_command
from pretrain.export import ExportOptions
from pretrain.huggingface import hub
from pretrain.huggingface.hub import push, require_repository

hub.PATIENCE = 2.0
folder, name = sys.argv[1:]
sys.argv[1:] = ["run", "out"]

def upload(options):
    require_repository(name)
    print(push(Path(folder), name))

sys.exit(run_command(upload, ExportOptions, "x"))
"""


class StandIn(BaseHTTPRequestHandler):
    """Keeps large files by their sha256 when they are put, and the others with the commit that names all."""

    protocol_version = "HTTP/1.1"
    repositories: dict[str, dict[str, bytes]]
    stored: dict[str, bytes]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        address = f"http://{self.headers['Host']}"
        if self.headers["Authorization"] != "Bearer hf_stand_in":
            return self.answer({"error": "Invalid credentials"}, 401)
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            self.repositories[name] = {}
            return self.answer({"url": f"{address}/{name}", "name": name})
        if self.path == "/api/validate-yaml":
            page = json.loads(body)["content"]
            described = yaml.safe_load(page.split("---")[1])
            lacking = [{"message": f"{key} is missing"} for key in ("license", "language") if key not in described]
            return self.answer({"errors": lacking, "warnings": []}, 400 if lacking else 200)
        owner, name, what = self.path.removeprefix("/api/models").removeprefix("/").split("/")[:3]
        repository = f"{owner}/{name.removesuffix('.git')}"
        if what == "preupload":
            files = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                }
                for file in json.loads(body)["files"]
            ]
            return self.answer({"files": files})
        if what == "info":
            objects = [
                thing | {"actions": {"upload": {"href": f"{address}/objects/{thing['oid']}"}}}
                for thing in json.loads(body)["objects"]
            ]
            return self.answer({"transfer": "basic", "objects": objects})
        assert what == "commit", self.path
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                self.repositories[repository][value["path"]] = base64.b64decode(value["content"])
            if line["key"] == "lfsFile":
                self.repositories[repository][value["path"]] = self.stored[value["oid"]]
        return self.answer({"commitUrl": f"{address}/{repository}/commit/{'0' * 40}", "commitOid": "0" * 40})

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        assert hashlib.sha256(content).hexdigest() == self.path.rpartition("/")[2]
        self.stored[self.path.rpartition("/")[2]] = content
        self.answer({})

    def do_GET(self) -> None:
        self.answer({"error": "not here"}, 404)

    def answer(self, content: Any, status: int = 200) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *values: Any) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[tuple[str, dict[str, dict[str, bytes]]]]:
    """The stand-in's address, and the files of each repository."""
    handler = type("Handler", (StandIn,), {"repositories": {}, "stored": {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", handler.repositories  # type: ignore[attr-defined]
    server.shutdown()
    server.server_close()


def send(
    command: list[str], cache: Path, address: str, token: str | None, patience: float = 200
) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the hub's client reads its settings once, when it is imported."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    environment |= {"HF_HUB_DISABLE_XET": "1", "HF_ENDPOINT": address, "HF_HOME": str(cache)} | (
        {} if token is None else {"HF_TOKEN": token}
    )
    return subprocess.run(
        [sys.executable, *command], cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=patience
    )


def test_the_hub_has_every_byte_of_the_folder(
    hub: tuple[str, dict[str, dict[str, bytes]]], shards_folder: Path, tmp_path: Path
) -> None:
    address, repositories = hub
    run = untouched_run(tmp_path / "run", shards_folder, "hp_loss")
    command = ["pretrain/export.py", str(run), str(tmp_path / "out"), "--push", "someone/electra"]
    done = send(command, tmp_path / "cache", address, "hf_stand_in")
    assert done.returncode == 0, done.stderr
    assert f"uploaded to {address}/someone/electra" in done.stdout
    written = {
        path.relative_to(tmp_path / "out").as_posix(): path.read_bytes()
        for path in (tmp_path / "out").rglob("*")
        if path.is_file()
    }
    assert repositories == {"someone/electra": written}


@pytest.mark.parametrize(
    ("name", "token", "card", "said"),
    [
        ("no owner", "hf_stand_in", CARD, "push: got 'no owner', expected OWNER/NAME"),
        ("electra", "hf_stand_in", CARD, "push: got 'electra', expected OWNER/NAME"),
        ("someone/electra", None, CARD, "push: the hub needs a token"),
        ("someone/electra", "hf_other", CARD, "push: the upload to someone/electra failed"),
        ("someone/electra", "hf_stand_in", "---\nlicense: mit\n---\n", "push: the upload to someone/electra failed"),
    ],
)
def test_what_the_hub_refuses_is_one_clear_error(
    name: str,
    token: str | None,
    card: str,
    said: str,
    hub: tuple[str, dict[str, dict[str, bytes]]],
    tmp_path: Path,
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "README.md").write_text(card)
    done = send(["-c", PUSH, str(tmp_path / "out"), name], tmp_path / "cache", hub[0], token)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert not any(hub[1].values())


def test_a_hub_that_never_answers_is_one_clear_error_after_a_bounded_time(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "README.md").write_text(CARD)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        command = ["-c", PUSH, str(tmp_path / "out"), "someone/electra"]
        done = send(command, tmp_path / "cache", address, "hf_stand_in", patience=60)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert f"push: the upload to someone/electra failed (ReadTimeout: timed out); {tmp_path / 'out'} is complete" in (
        done.stderr
    )
