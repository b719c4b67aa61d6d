"""Claims about trust: nothing that is loaded is unpickled, and pickled code never runs."""

import ast
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from data_prep.manifest import load_manifest, save_manifest
from data_prep.tokens import open_tokenizer
from electra_sampler.foundation.config import ConfigError
from electra_sampler.foundation.files import file_sha256
from pretrain.data.shards import Shards
from pretrain.engine.checkpoint import load, load_weights, save
from pretrain.export import ExportOptions
from pretrain.export import main as export
from pretrain.huggingface.forms import MODEL_FILE
from pretrain.huggingface.stored import SAMPLING_HEAD, read_stored
from pretrain.presets import PRESETS
from pretrain.runs.folder import write_run
from tests.conftest import REPOSITORY
from tests.finetune.conftest import untrained_run
from tests.pretrain.engine.checkpoints import sign, state_of
from tests.pretrain.runs.described import described

PACKAGES = ("electra_sampler", "data_prep", "pretrain", "finetune")
TOKENIZER = {"vocab.txt", "tokenizer.json", "tokenizer_config.json"}
"""Files in a tokenizer folder written by this project."""
UNPICKLERS = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


class Malicious:
    """An object whose unpickling writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (self.path,)  # type: ignore[return-value]


@pytest.mark.parametrize("write", ["pickle", "torch"])
@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors", "state.json"])
def test_a_pickle_in_a_checkpoint_with_a_valid_checksum_does_not_run(name: str, write: str, tmp_path: Path) -> None:
    checkpoint = save(tmp_path / "checkpoints", 1, state_of(1), {}, keep_last=1)
    traces, path = tmp_path / "it ran", checkpoint.folder / name
    if write == "torch":
        torch.save(Malicious(traces), path)
    else:
        path.write_bytes(pickle.dumps(Malicious(traces)))
    sign(checkpoint.folder)
    with pytest.raises(Exception, match=r"(?i)header|json|utf-8|codec|expecting"):
        load(checkpoint)
    if name == "weights.safetensors":
        with pytest.raises(Exception, match=r"(?i)header"):
            load_weights(checkpoint)
    assert not traces.exists()
    pickle.loads(pickle.dumps(Malicious(traces)))
    assert traces.exists(), "otherwise the test would prove nothing"


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_unpickles(package: str) -> None:
    for path in (REPOSITORY / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not UNPICKLERS & {alias.name.split(".")[0] for alias in node.names}, path
            elif isinstance(node, ast.ImportFrom):
                harmless = {alias.name for alias in node.names} == {"UnpicklingError"}
                assert harmless or (node.module or "").split(".")[0] not in UNPICKLERS, path
            elif isinstance(node, ast.Call):
                assert ast.unparse(node.func) != "torch.load" or "weights_only=True" in ast.unparse(node), path
                assert not [word for word in node.keywords if word.arg == "allow_pickle"], path


def plant(folder: Path, marker: Path) -> None:
    """Puts code that writes the marker on import beside a tokenizer, and configuration that asks for the import."""
    names = ("AutoConfig", "AutoModel", "AutoModelForPreTraining", "AutoModelForMaskedLM")
    (folder / "planted.py").write_text(f"open({str(marker)!r}, 'w').close()\nclass Planted: ...\n")
    (folder / MODEL_FILE).write_text((folder / "planted.py").read_text())
    config = {"model_type": "electra_sampler", "auto_map": dict.fromkeys(names, "planted.Planted")}
    (folder / "config.json").write_text(json.dumps(config))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["auto_map"] = {"AutoTokenizer": ["planted.Planted", "planted.Planted"]}
    settings["tokenizer_class"] = "Planted"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "deeper").mkdir()
    (folder / "deeper" / "planted.py").write_text((folder / "planted.py").read_text())


def bind_tokenizer(shards: Path) -> None:
    """Updates the manifest to the tokenizer's files, as someone who plants code could."""
    manifest = load_manifest(shards)
    names = {name: file_sha256(shards / "tokenizer" / name) for name in manifest.tokenizer_files}
    save_manifest(manifest.model_copy(update={"tokenizer_files": names}), shards)


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


def follow(card: Path, marker: Path) -> str:
    """Runs the model card's code in a new process; returns whether planted code ran, or else the output."""
    (snippet,) = re.findall(r"```python\n(.*?)```", card.read_text(), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", snippet],
        cwd=card.parent,
        env=os.environ | {"HF_HOME": str(marker.parent / "cache"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
    )
    return "planted code ran" if marker.exists() else done.stderr if done.returncode else ""


@pytest.mark.parametrize("objective", ["hp_loss", "mlm"])
def test_code_planted_beside_a_tokenizer_is_neither_copied_nor_run(
    objective: str, shards_folder: Path, tmp_path: Path
) -> None:
    """Planted in the folders of vocabulary, shards and run, each of which feeds the next."""
    marker = tmp_path / "it ran"
    shutil.copytree(shards_folder, tmp_path / "shards")
    plant(tmp_path / "shards" / "tokenizer", marker)
    bind_tokenizer(tmp_path / "shards")
    untrained_run(tmp_path / "run", tmp_path / "shards", "tiny", objective)
    copied = files(tmp_path / "run" / "tokenizer")
    shutil.rmtree(tmp_path / "run" / "tokenizer")
    shutil.copytree(tmp_path / "shards" / "tokenizer", tmp_path / "run" / "tokenizer")
    export(ExportOptions(run=tmp_path / "run", out=tmp_path / "out"))
    assert follow(tmp_path / "out" / "README.md", marker) == ""
    assert copied == TOKENIZER
    model = {"config.json", "model.safetensors", MODEL_FILE, *TOKENIZER}
    within = {f"generator/{name}" for name in (*model, SAMPLING_HEAD)} if objective == "hp_loss" else set()
    assert files(tmp_path / "out") == model | {"README.md"} | within
    for folder in (tmp_path / "out", tmp_path / "out" / "generator"):
        for name in TOKENIZER if folder.is_dir() else ():
            ours = re.sub(r',\n  "model_max_length": \d+\n}$', "\n}", (folder / name).read_text())
            assert ours == (shards_folder / "tokenizer" / name).read_text()


def test_planted_code_would_run_if_it_were_copied(shards_folder: Path, tmp_path: Path) -> None:
    """Otherwise the test above would prove nothing: the model card's code trusts code in the folder."""
    untrained_run(tmp_path / "run", shards_folder, "tiny", "hp_loss")
    export(ExportOptions(run=tmp_path / "run", out=tmp_path / "out"))
    plant(tmp_path / "out", tmp_path / "it ran")
    assert follow(tmp_path / "out" / "README.md", tmp_path / "it ran") == "planted code ran"


def test_only_the_vocabulary_is_taken_from_a_vocabulary_folder(shards_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(shards_folder / "tokenizer", tmp_path / "vocab")
    plant(tmp_path / "vocab", tmp_path / "it ran")
    open_tokenizer(str(tmp_path / "vocab")).save(tmp_path / "saved")
    assert files(tmp_path / "saved") == TOKENIZER
    assert "auto_map" not in json.loads((tmp_path / "saved" / "tokenizer_config.json").read_text())


def test_fine_tuning_neither_runs_the_code_named_by_its_model_nor_asks_to(shards_folder: Path, tmp_path: Path) -> None:
    untrained_run(tmp_path / "run", shards_folder, "tiny", "hp_loss")
    export(ExportOptions(run=tmp_path / "run", out=tmp_path / "out"))
    config = (tmp_path / "out" / "config.json").read_text()
    plant(tmp_path / "out", tmp_path / "it ran")
    (tmp_path / "out" / "config.json").write_text(config)
    assert read_stored(tmp_path / "out").load_tokenizer()("the").input_ids[0] == 2
    assert not (tmp_path / "it ran").exists()


@pytest.mark.parametrize("name", sorted(TOKENIZER))
def test_a_link_out_of_a_tokenizer_folder_is_not_followed(name: str, shards_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(shards_folder, tmp_path / "shards")
    description = described(PRESETS["tiny"], Shards(tmp_path / "shards"))
    path = tmp_path / "shards" / "tokenizer" / name
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    refused = f"{name}: links to a file outside its folder; replace it with a copy"
    with pytest.raises(ConfigError, match=refused):
        Shards(tmp_path / "shards")
    with pytest.raises(ConfigError, match=refused):
        write_run(tmp_path / "run", description, {})
    assert not (tmp_path / "run").exists()
