"""Claims about a run's initial model; test_evaluate.py covers loading a trained one."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch

from electra_sampler.foundation.config import ConfigError
from pretrain.config import with_overrides
from pretrain.data.shards import Shards
from pretrain.engine.checkpoint import EngineState, load, newest_valid, save
from pretrain.engine.plain import MOMENTS
from pretrain.method.objective import Objective
from pretrain.model.modern import ModernConfig
from pretrain.planning.plan import make_plan
from pretrain.presets import PRESETS, with_objective
from pretrain.runs.folder import CHECKPOINTS, write_run
from pretrain.runs.models import build_model, empty_model, initial_state
from tests.pretrain.data.range_server import serving
from tests.pretrain.huggingface.conftest import assert_bitwise, options, start
from tests.pretrain.runs.described import described


def test_initial_weights_depend_only_on_the_seed(shards_folder: Path) -> None:
    shards = Shards(shards_folder)
    descriptions = [described(with_overrides(PRESETS["tiny"], [f"seed={seed}"]), shards) for seed in (1, 1, 2)]
    first, again, other = (build_model(description) for description in descriptions)
    assert_bitwise(first.state_dict(), again.state_dict())
    table = "discriminator.embeddings.word_embeddings.weight"
    assert not torch.equal(first.state_dict()[table], other.state_dict()[table])
    assert first.special_mask_id == shards.manifest.special_tokens.mask


@pytest.mark.parametrize("objective", ["hp_loss", "mlm"])
def test_a_model_without_weights_has_the_same_shapes_and_shared_parameters(objective: str, shards_folder: Path) -> None:
    description = described(with_objective(PRESETS["tiny"], objective), Shards(shards_folder))
    full, empty = (
        {name: (parameter.shape, parameter.dtype, parameter.device) for name, parameter in model.named_parameters()}
        for model in (build_model(description), empty_model(description))
    )
    assert empty == full


@pytest.fixture
def run_of(shards_folder: Path, tmp_path: Path) -> Callable[..., tuple[Path, Objective]]:
    """Writes the folder of a run of an objective, with one checkpoint of random weights and moments after 7 steps, of
    which one overflowed; with `tokens`, the run knows only so many of the data's.
    """

    def write(objective: str, tokens: int = 300, preset: str = "tiny", muon: bool = False) -> tuple[Path, Objective]:
        settings = ["seed=5", f"optim.muon={str(muon).lower()}"]
        run = with_overrides(with_objective(PRESETS[preset], objective), settings)
        description = described(run, Shards(shards_folder)).model_copy(update={"vocab_size": tokens})
        model = build_model(description)
        weights, *moments = (
            {name: torch.randn_like(parameter) for name, parameter in model.named_parameters()} for _ in range(3)
        )
        model.load_state_dict(weights, strict=False)
        folder = tmp_path / "run"
        write_run(folder, description, {})
        vocabulary = folder / "tokenizer" / "vocab.txt"
        vocabulary.write_text("\n".join(vocabulary.read_text().splitlines()[:tokens]) + "\n")
        (folder / "tokenizer" / "tokenizer.json").unlink()
        state = EngineState(6, {"cur_scale": 4.0}, weights, dict(zip(MOMENTS, moments, strict=True)))
        save(folder / CHECKPOINTS, 7, state, {}, keep_last=1)
        return folder, model

    return write


def test_new_tokens_are_those_of_shards_behind_a_url(
    run_of: Callable[..., tuple[Path, Objective]], shards_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run, _ = run_of("hp_loss", tokens=290)
    with serving(shards_folder, delay=0.0) as server:
        remote = start(shards_folder, (str(run),), data=(server.url,))
    assert_bitwise(remote.state_dict(), start(shards_folder, (str(run),)).state_dict())


@pytest.mark.parametrize("objective", ["electra", "hp_loss", "hp_dist", "mlm"])
def test_a_run_starts_another_with_bitwise_all_its_weights(
    objective: str,
    run_of: Callable[..., tuple[Path, Objective]],
    shards_folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, trained = run_of(objective)
    weights = start(shards_folder, (str(run),), objective=objective).state_dict()
    assert_bitwise(weights, trained.state_dict())
    assert "start fresh" not in capsys.readouterr().out


def test_a_run_of_another_objective_starts_all_but_the_sampling_head(
    run_of: Callable[..., tuple[Path, Objective]], shards_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, trained = run_of("hp_loss")
    weights = start(shards_folder, (str(run),), objective="hp_dist").state_dict()
    changed = {
        name.split(".")[0] for name, weight in trained.state_dict().items() if not torch.equal(weight, weights[name])
    }
    assert changed == {"sampler_transform", "sampler_scores"}
    assert "shared embeddings: sampler_transform, sampler_scores\n" in capsys.readouterr().out


@pytest.mark.parametrize(("objective", "place"), [("mlm", "generator"), ("uniform", ".")])
def test_a_masked_language_models_run_starts_the_generator_and_one_without_a_generator_the_discriminator(
    objective: str, place: str, run_of: Callable[..., tuple[Path, Objective]], shards_folder: Path
) -> None:
    run, trained = run_of(objective)
    started = start(shards_folder, (str(run),)).exported(place).state_dict()
    assert_bitwise(started, trained.exported(".").state_dict())


def kept_from(shards: Path, run: Path, **changes: object) -> tuple[EngineState, EngineState]:
    """The state that a run keeps at its start, and the state of the checkpoint it is from."""
    plan = make_plan(options(shards, (str(run),), keep_optimizer=True, **changes))
    state = initial_state(plan.description, plan.donors)[1]
    saved = newest_valid(run / CHECKPOINTS)
    assert state is not None and saved is not None
    return state, load(saved)[0]


@pytest.mark.parametrize("objective", ["electra", "hp_loss", "hp_dist", "mlm"])
def test_a_kept_optimizer_is_bitwise_the_runs_but_for_its_loss_scale(
    objective: str, run_of: Callable[..., tuple[Path, Objective]], shards_folder: Path
) -> None:
    state, saved = kept_from(shards_folder, run_of(objective)[0], objective=objective)
    assert (state.adam_steps, state.loss_scale) == (6, {})
    assert_bitwise(state.weights | state.moments, saved.weights | saved.moments)


@pytest.mark.parametrize("before", [False, True])
def test_first_moments_are_kept_under_muon_whatever_updated_them(
    before: bool, run_of: Callable[..., tuple[Path, Objective]], shards_folder: Path
) -> None:
    state, saved = kept_from(shards_folder, run_of("hp_loss", muon=before)[0], set=("optim.muon=true",))
    assert_bitwise(state.moments["exp_avg"], saved.moments["exp_avg"])


@pytest.mark.parametrize(
    ("muon", "setting", "said"),
    [
        (True, "optim.muon=false", r"optim\.muon true .*; add --set optim\.muon=true"),
        (False, "model.embedding_sharing=gdes", r"model\.embedding_sharing gdes .*; leave --keep_optimizer out"),
    ],
)
def test_a_state_without_second_moments_or_of_parts_that_are_summed_is_refused(
    muon: bool, setting: str, said: str, run_of: Callable[..., tuple[Path, Objective]], shards_folder: Path
) -> None:
    with pytest.raises(ConfigError, match=f"^keep_optimizer: got {said}"):
        kept_from(shards_folder, run_of("hp_loss", muon=muon)[0], set=(setting,))


def test_moments_of_added_positions_repeat_as_the_positions_do(
    run_of: Callable[..., tuple[Path, Objective]], shards_folder: Path
) -> None:
    state, saved = kept_from(shards_folder, run_of("hp_loss")[0], set=("model.max_positions=700",))
    for tensors in (saved.weights, *saved.moments.values()):
        for name in [name for name in tensors if name.endswith("position_embeddings.weight")]:
            tensors[name] = torch.cat([tensors[name], tensors[name][:188]])
    assert_bitwise(state.weights | state.moments, saved.weights | saved.moments)


def test_a_second_phase_on_longer_sequences_changes_only_the_base_of_rotary_positions(
    run_of: Callable[..., tuple[Path, Objective]], shards_folder: Path
) -> None:
    run, trained = run_of("hp_loss", preset="modern_tiny")
    given = {"preset": "modern_tiny", "set": ("model.max_positions=8192", "model.global_theta=160000")}
    started = start(shards_folder, (str(run),), **given)
    config, before = (cast(ModernConfig, model.get_submodule("discriminator").config) for model in (started, trained))
    assert config == replace(before, max_position_embeddings=8192, global_theta=160_000.0)
    assert_bitwise(started.state_dict(), trained.state_dict())
    state, saved = kept_from(shards_folder, run, **given)
    assert_bitwise(state.moments, saved.moments)


def test_moments_of_new_tokens_are_zero(run_of: Callable[..., tuple[Path, Objective]], shards_folder: Path) -> None:
    state, saved = kept_from(shards_folder, run_of("hp_loss", tokens=290)[0])
    tables = [name for name in state.weights if len(state.weights[name]) == 300]
    assert len(tables) == 3  # the words, and a bias in each of two heads
    for key in MOMENTS:
        for name, moment in state.moments[key].items():
            theirs = saved.moments[key][name]
            assert torch.equal(moment[: len(theirs)], theirs), name
            assert len(moment) == len(theirs) or (name in tables and not moment[290:].any()), name
    assert all(state.weights[name][290:].any() for name in tables)


@pytest.mark.parametrize(("before", "fresh"), [("hp_loss", "sampler_"), ("mlm", ("discriminator", "sampler_"))])
def test_parts_that_start_fresh_have_no_moments_and_all_others_keep_theirs(
    before: str, fresh: str | tuple[str, ...], run_of: Callable[..., tuple[Path, Objective]], shards_folder: Path
) -> None:
    state, saved = kept_from(shards_folder, run_of(before)[0], objective="hp_dist")
    for key in MOMENTS:
        for name, moment in state.moments[key].items():
            if name.startswith(fresh):
                assert not moment.any(), name
            else:
                former = name if name in saved.moments[key] else name.replace("generator.", "electra.")
                assert torch.equal(moment, saved.moments[key][former]), name
