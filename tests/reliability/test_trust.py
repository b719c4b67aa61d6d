"""Claims about what is trusted: nothing that is loaded is unpickled, and nothing pickled runs."""

import ast
import hashlib
import json
import pickle
from pathlib import Path

import pytest
import torch

from pretrain.checkpoint import Checkpoint, load, load_weights, save
from tests.conftest import REPOSITORY
from tests.pretrain.test_checkpoint import state_of

PACKAGES = ("data_prep", "pretrain", "finetune", "quickstart")
UNPICKLERS = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


class Malicious:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (self.path,)  # type: ignore[return-value]


@pytest.mark.parametrize("write", ["pickle", "torch"])
@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors", "state.json"])
def test_a_pickle_in_a_checkpoint_with_the_right_checksum_does_not_run(name: str, write: str, tmp_path: Path) -> None:
    checkpoint = save(tmp_path / "checkpoints", 1, state_of(1), {}, keep_last=1)
    traces, path = tmp_path / "it ran", checkpoint.folder / name
    if write == "torch":
        torch.save(Malicious(traces), path)
    else:
        path.write_bytes(pickle.dumps(Malicious(traces)))
    sign(checkpoint, name)
    with pytest.raises(Exception, match=r"(?i)header|json|utf-8|codec|expecting"):
        load(checkpoint)
    if name == "weights.safetensors":
        with pytest.raises(Exception, match=r"(?i)header"):
            load_weights(checkpoint)
    assert not traces.exists()
    pickle.loads(pickle.dumps(Malicious(traces)))
    assert traces.exists(), "otherwise it would have said nothing"


def sign(checkpoint: Checkpoint, name: str) -> None:
    """Gives the marker the size and checksum of the file as it is now."""
    marker, content = checkpoint.folder / "complete.json", (checkpoint.folder / name).read_bytes()
    values = json.loads(marker.read_text())
    values["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    marker.write_text(json.dumps(values))


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_unpickles(package: str) -> None:
    for path in (REPOSITORY / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not UNPICKLERS & {alias.name.split(".")[0] for alias in node.names}, path
            elif isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] not in UNPICKLERS, path
            elif isinstance(node, ast.Call):
                assert ast.unparse(node.func) != "torch.load", path
                assert not [word for word in node.keywords if word.arg == "allow_pickle"], path
