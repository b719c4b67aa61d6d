"""Claims about a run's initial model; test_evaluate.py covers loading a trained one."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from foundation.config import ConfigError
from pretrain.config import with_overrides
from pretrain.data.shards import Shards
from pretrain.engine.checkpoint import EngineState, save
from pretrain.method.objectives.objective import Objective
from pretrain.presets import PRESETS, with_objective
from pretrain.training.models import build_model, empty_model, initial_model
from pretrain.training.options import RunOptions
from pretrain.training.plan import make_plan
from pretrain.training.run_folder import CHECKPOINTS, describe, write_run


def test_initial_weights_depend_only_on_the_seed(shards_folder: Path) -> None:
    shards = Shards(shards_folder)
    descriptions = [describe(with_overrides(PRESETS["tiny"].run, [f"seed={seed}"]), shards) for seed in (1, 1, 2)]
    first, again, other = (build_model(description) for description in descriptions)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    table = "discriminator.embeddings.word_embeddings.weight"
    assert not torch.equal(first.state_dict()[table], other.state_dict()[table])
    assert first.special_mask_id == shards.manifest.special_tokens.mask


@pytest.mark.parametrize("objective", ["hp_loss", "mlm"])
def test_a_model_without_weights_has_the_same_shapes_and_shared_parameters(objective: str, shards_folder: Path) -> None:
    description = describe(with_objective(PRESETS["tiny"].run, objective), Shards(shards_folder))
    full, empty = (
        {name: (parameter.shape, parameter.dtype, parameter.device) for name, parameter in model.named_parameters()}
        for model in (build_model(description), empty_model(description))
    )
    assert empty == full


@pytest.fixture
def run_of(shards_folder: Path, tmp_path: Path) -> Callable[..., tuple[Path, Objective]]:
    """Writes the folder of a run of an objective, with one checkpoint of random weights."""

    def write(objective: str) -> tuple[Path, Objective]:
        run = with_overrides(with_objective(PRESETS["tiny"].run, objective), ["seed=5"])
        description = describe(run, Shards(shards_folder))
        model = build_model(description)
        weights = {name: torch.randn_like(parameter) for name, parameter in model.named_parameters()}
        model.load_state_dict(weights, strict=False)
        write_run(tmp_path / "run", description, {})
        save(tmp_path / "run" / CHECKPOINTS, 7, EngineState(7, {}, weights, {}), {}, keep_last=1)
        return tmp_path / "run", model

    return write


def start_from(shards: Path, run: Path, **changes: object) -> Objective:
    values = {"preset": "tiny", "data": (shards,), "output": shards / "none", "init_from": (str(run),), **changes}
    return initial_model(make_plan(RunOptions.from_values(values)).description)


@pytest.mark.parametrize("objective", ["electra", "hp_loss", "hp_dist", "amos"])
def test_a_run_starts_another_with_bitwise_all_its_weights(
    objective: str,
    run_of: Callable[..., tuple[Path, Objective]],
    shards_folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, trained = run_of(objective)
    weights = start_from(shards_folder, run, objective=objective).state_dict()
    assert weights.keys() == trained.state_dict().keys()
    assert all(torch.equal(weights[name], weight) for name, weight in trained.state_dict().items())
    assert "start fresh" not in capsys.readouterr().out


def test_a_run_of_another_objective_starts_all_but_the_sampling_head(
    run_of: Callable[..., tuple[Path, Objective]], shards_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, trained = run_of("hp_loss")
    weights = start_from(shards_folder, run, objective="hp_dist").state_dict()
    changed = {
        name.split(".")[0] for name, weight in trained.state_dict().items() if not torch.equal(weight, weights[name])
    }
    assert changed == {"sampler_transform", "sampler_scores"}
    assert "shared embeddings: sampler_transform, sampler_scores\n" in capsys.readouterr().out


def test_a_masked_language_models_run_starts_the_generator(
    run_of: Callable[..., tuple[Path, Objective]], shards_folder: Path
) -> None:
    run, trained = run_of("mlm")
    weights = start_from(shards_folder, run).state_dict()
    assert all(
        torch.equal(weights[name.replace("electra.", "generator.")], weight)
        for name, weight in trained.state_dict().items()
    )


def test_a_run_with_other_tokens_is_refused(run_of: Callable[..., tuple[Path, Objective]], shards_folder: Path) -> None:
    run, _ = run_of("hp_loss")
    path = run / "tokenizer" / "vocab.txt"
    tokens = path.read_text().splitlines()
    tokens[-1], tokens[-2] = tokens[-2], tokens[-1]
    path.write_text("\n".join(tokens) + "\n")
    (run / "tokenizer" / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match="is not the data's, nor its beginning"):
        start_from(shards_folder, run)
