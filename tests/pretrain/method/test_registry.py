"""Claims about samplers in files of their own: one named by `--objective` trains, resumes, evaluates and exports, and
no other file ever runs.
"""

import hashlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForPreTraining

from pretrain.huggingface.stored import read_stored
from pretrain.method.registry import LOADED, LoadedSampler, load_objective
from tests.conftest import REPOSITORY
from tests.warm import run

STEPS = ("optim.steps=4", "optim.warmup_steps=1", "batch_size=8", "checkpoint_every=2", "evaluate_sequences=8")
SWITCHES = {
    "samplers.power:HPLossPower": "objective.exponent=3.0",
    "samplers.floors:Unigram": "objective.lambda2=40.0",
    "samplers.oracle:Oracle": "objective.candidates=3",
}
"""A sampler with a head, one without a generator and one that looks ahead, each with a switch."""


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs one of the scripts in pretrain/."""
    return run(f"pretrain/{arguments[0]}.py", *arguments[1:])


def train(sampler: str, shards: Path, folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    options = ("--preset", "tiny", "--data", shards, "--output", folder, "--objective", sampler)
    return command("run", *options, "--set", *STEPS, *overrides)


@pytest.fixture(scope="module", params=[*[*SWITCHES][:2], pytest.param([*SWITCHES][2], marks=pytest.mark.long)])
def sampler(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def trained(sampler: str, shards_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run."""
    folder = tmp_path_factory.mktemp("new") / "run"
    done = train(sampler, shards_folder, folder, SWITCHES[sampler])
    assert done.returncode == 0, done.stderr
    return folder


def test_it_trains_by_its_file_and_switch_and_resumes_bitwise(
    sampler: str, trained: Path, shards_folder: Path, tmp_path: Path
) -> None:
    key, value = SWITCHES[sampler].removeprefix("objective.").split("=")
    written = json.loads((trained / "run.json").read_text())
    objective = written["run"]["objective"]
    assert (objective["name"], str(objective[key])) == (load_objective(sampler), value) and "mixture" not in objective
    file = REPOSITORY / f"{sampler.partition(':')[0].replace('.', '/')}.py"
    assert (trained / "sampler.py").read_bytes() == file.read_bytes()
    assert written["sampler"]["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    again = shutil.copytree(trained, tmp_path / "run")
    shutil.rmtree(again / "checkpoints" / "step-00000004")
    done = train(sampler, shards_folder, again, SWITCHES[sampler])
    assert done.returncode == 0 and "resumed from step 2" in done.stdout, done.stdout + done.stderr
    weights, resumed = (
        load_file(folder / "checkpoints/step-00000004/weights.safetensors") for folder in (trained, again)
    )
    assert weights.keys() == resumed.keys() and all(torch.equal(weights[name], resumed[name]) for name in weights)
    assert ("sampler_scores.bias" in weights) == (sampler == "samplers.power:HPLossPower")
    assert any(name.startswith("generator.") for name in weights) == (sampler != "samplers.floors:Unigram")


def test_another_value_of_its_switch_is_another_run(sampler: str, trained: Path, shards_folder: Path) -> None:
    key, value = SWITCHES[sampler].split("=")
    other = train(sampler, shards_folder, trained, f"{key}=1", "--dry_run")
    assert other.returncode == 2
    assert f"run.{key}: {trained} was started with {value}, this command says 1" in other.stderr


def test_it_is_evaluated_under_its_own_distribution_and_its_export_loads_in_transformers(
    sampler: str, trained: Path, tmp_path: Path
) -> None:
    named, has_generator = ("--objective", sampler), sampler != "samplers.floors:Unigram"
    done = command("evaluate", trained, "--sequences", "16", "--batch_size", "8", *named)
    assert done.returncode == 0, done.stderr
    metrics = json.loads((trained / "evaluation" / "metrics.json").read_text())
    assert metrics["objective"] == load_objective(sampler)
    assert metrics["detection"].keys() == ({"p_G", "p_S"} if has_generator else {"p_G"})
    estimated = metrics["estimate_correlation"]["all"] is not None
    assert estimated == (sampler == "samplers.power:HPLossPower")
    done = command("page", trained, *named)
    assert done.returncode == 0, done.stderr
    done = command("export", trained, tmp_path / "out", *named)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "generator").is_dir() == has_generator
    card = (tmp_path / "out" / "README.md").read_text()
    key, value = SWITCHES[sampler].split("=")
    assert f"# {LOADED[load_objective(sampler)].kind.title}\n" in card and f"| {key} | {value} |" in card
    assert ("| MLM accuracy |" in card) == has_generator
    weights = load_file(trained / "checkpoints/step-00000004/weights.safetensors")
    for name, weight in read_stored(tmp_path / "out").encoder().state_dict().items():
        assert torch.equal(weight, weights.get(f"discriminator.{name}", weights.get(f"generator.{name}")))
    assert AutoModelForPreTraining.from_pretrained(tmp_path / "out", trust_remote_code=True).config.vocab_size == 300


def test_the_guides_sampler_does_what_the_guide_says(shards_folder: Path, tmp_path: Path) -> None:
    """In a folder with the guide's file: its commands as they stand, with fewer steps."""
    guide = (REPOSITORY / "docs/guide/samplers.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    assert len(code.strip().splitlines()) <= 32
    (tmp_path / "my_sampler.py").write_text(code)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/novels").symlink_to(shards_folder)
    lines = [line for line in guide.splitlines() if line.startswith("python") and "my_sampler.py" in line]
    training, *others = ([str(REPOSITORY / words[1]), *words[2:]] for words in map(shlex.split, lines))
    here = partial(run, cwd=tmp_path)
    done = here(*training, *STEPS)
    assert done.returncode == 0, done.stderr
    assert '"replace_rate"' in (tmp_path / "runs/top_k/metrics.jsonl").read_text()
    for words in others:
        done = here(*words)
        short = "doctor" in words[0]  # of so few steps it has no opinion
        assert done.returncode == (2 if short else 0), done.stdout + done.stderr
    exported = (tmp_path / "exported/top_k").rename(tmp_path / "stock")
    assert re.search(r"objective\.k +5 +Tokens to choose from\.", here(*training, "--list_settings").stdout)
    # no command runs a file that is not named, nor one that has changed
    for words in others:
        without = words[: words.index("--objective")]
        done = here(*without)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
        assert "add --objective my_sampler.py:TopK" in done.stderr
    old = hashlib.sha256(code.encode()).hexdigest()
    (tmp_path / "my_sampler.py").write_text(code + "\n")
    new = hashlib.sha256((code + "\n").encode()).hexdigest()
    for words in ([*training, *STEPS], *others):
        done = here(*words)
        assert done.returncode == 2 and old in done.stderr and new in done.stderr
    assert AutoModelForPreTraining.from_pretrained(exported, trust_remote_code=True).config.vocab_size == 300


OWN = """
from electra_sampler.foundation.config import StrictConfig
from pretrain.method.electra import Electra

class A(Electra):
    class Config(Electra.Config):
        {config}
"""
WITHOUT_CONFIG = """
from pretrain.method.objective import Objective

class A(Objective):
    build = forward = encoders = None
"""


@pytest.mark.parametrize(
    ("file", "given", "message"),
    [
        ("", "hp_los", "expected one of hp_loss, hp_dist, electra, mlm; did you mean 'hp_loss'?, or a sampler of"),
        ("", "no_such_package.module:A", "'no_such_package.module' fails: ModuleNotFoundError"),
        ("x = 1\nraise KeyError('k')\n", "own.py:A", "line 2 of 'own.py' fails: KeyError: "),
        ("def (", "own.py:A", "'own.py' fails: SyntaxError"),
        ("x = 1", "own.py:A", "expected a class derived from pretrain.method.electra.Sampler"),
        ("class A: pass", "own.py:A", "expected a class derived from"),
        ("from pretrain.method.electra import Electra as A", "own.py:A", "a name other than hp_loss, hp_dist"),
        ("from pretrain.method.electra import Sampler as A", "own.py:A", "expected a class derived from"),
        ("import sys\nsys.exit(0)", "own.py:A", "line 2 of 'own.py' fails: SystemExit: 0"),
        (OWN.format(config="pass"), "own.py:A", "a name other than hp_loss, hp_dist"),
        (WITHOUT_CONFIG, "own.py:A", "whose Config, derived from its parent's"),
        (OWN.replace("(Electra.Config)", "").format(config="name = 'a'"), "own.py:A", "whose Config, derived from its"),
        (OWN.replace("Electra.Config", "StrictConfig").format(config="k: int = 1"), "own.py:A", "whose Config, der"),
        (OWN.format(config="name: str = 'a'; k: int"), "own.py:A", "has a default for every setting"),
        (OWN.format(config="name: str = 'a'\n        cost = property(lambda _: {}[1])"), "own.py:A", "KeyError: 1"),
        (OWN.format(config="name: str = 'a'\n        cost = property(lambda _: 1)"), "own.py:A", "a cost of type Cost"),
    ],
)
def test_a_file_that_is_no_sampler_is_refused_by_name(
    file: str, given: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if file:
        (tmp_path / "own.py").write_text(file)
    with pytest.raises(ValueError, match=re.escape(message)):
        load_objective(given)


def test_a_file_is_known_by_all_that_it_imports_and_that_is_its_own_and_the_run_keeps_a_copy_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the way of the import, also behind an export from another file, and in any order of loading."""
    package = tmp_path / "of_samplers"  # without an __init__.py
    package.mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    sampler = OWN.format(config="name: str = 'of_files'\n        k: int = K")
    files = {
        package / "sizes.py": "K = 3\n",
        package / "late.py": "LATE = 1\n",
        package / "real.py": f"import json, numpy as np\nfrom .sizes import K\nimport pretrain.config\n{sampler}",
        tmp_path / "own.py": "from of_samplers.real import A\n\n\ndef later():\n    import of_samplers.late\n",
    }
    for path, text in files.items():
        path.write_text(text)

    def loaded() -> LoadedSampler:
        for name in [name for name in sys.modules if name.startswith("of_samplers")]:
            del sys.modules[name]
        return LOADED[load_objective(f"{tmp_path / 'own.py'}:A")]

    before = loaded()
    assert all(text.encode() in before.source for text in files.values())
    assert before.source.startswith(files[tmp_path / "own.py"].encode()) and b"def array" not in before.source
    assert before.origin.sha256 == loaded().origin.sha256 == hashlib.sha256(before.source).hexdigest()
    for path, text in files.items():
        path.write_text(text + "# changed\n")
        loaded()
        with pytest.raises(ValueError, match="restore them from the copy in the run folder"):
            before.origin.require_loaded()
        path.write_text(text)
