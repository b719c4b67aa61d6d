"""Claims about Fast-ELECTRA: its temperature, its draws, and its generator, which no step changes."""

import json
import math
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from foundation.config import ConfigError
from pretrain.config import with_overrides
from pretrain.data.batches import Batch
from pretrain.data.shards import Shards
from pretrain.engine.checkpoint import EngineState, save
from pretrain.evaluate import EvaluateOptions
from pretrain.evaluate import main as evaluate
from pretrain.export import ExportOptions
from pretrain.export import main as export
from pretrain.huggingface.folders import load_encoder
from pretrain.method.sampling import inverse_cdf
from pretrain.presets import PRESETS, with_objective, with_row
from pretrain.training.models import build_model, initial_model, load_trained
from pretrain.training.options import RunOptions
from pretrain.training.plan import make_plan
from pretrain.training.run_folder import CHECKPOINTS, describe, write_run
from tests.pretrain.conftest import SMALL_MODEL, new_model
from tests.pretrain.training.test_train import finished

STEPS = ("optim.steps=4", "optim.warmup_steps=1", "batch_size=8", "checkpoint_every=2", "evaluate_sequences=8")
FROZEN = ("generator.", "generator_predictions.", "generator_lm_head.")


@pytest.mark.parametrize(("progress", "temperature"), [(0.0, 3.0), (0.2, 1 + 2 / math.e), (1.0, 1 + 2 * math.exp(-5))])
def test_draws_are_those_of_the_generators_scores_over_a_temperature_that_falls_towards_1(
    progress: float, temperature: float, batch: Batch
) -> None:
    torch.manual_seed(0)
    model = new_model("fast_electra", start_temperature=3.0, decay=0.2).double()
    model.progress = progress
    hidden_BKH, prediction = model.generate(batch)
    words = model.generator.embeddings.word_embeddings
    z_BKV = model.generator_lm_head(model.generator_predictions(hidden_BKH), words)
    q_BKV = (z_BKV / temperature).softmax(-1)
    drawn = model.draw(hidden_BKH, prediction, batch.uniforms_BK)
    assert torch.equal(drawn.tokens_BK, inverse_cdf(q_BKV, batch.uniforms_BK)[0])
    torch.testing.assert_close(drawn.log_q_BK, q_BKV.gather(-1, drawn.tokens_BK[..., None])[..., 0].log())


@pytest.mark.parametrize("sharing", ["nes", "gdes"])
def test_the_loss_is_the_discriminators_and_reaches_only_the_discriminator(sharing: str, batch: Batch) -> None:
    model = new_model("fast_electra", SMALL_MODEL.model_copy(update={"embedding_sharing": sharing}))
    output = model(batch)
    expected = 50 * output.discriminator_loss_BL.where(batch.attention_mask_BL, 0.0).sum() / batch.token_count
    torch.testing.assert_close(output.loss.detach(), expected)
    output.loss.backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == name.startswith(FROZEN), name


def test_dropout_never_reaches_the_generator(batch: Batch) -> None:
    model = new_model("fast_electra", SMALL_MODEL.model_copy(update={"dropout": 0.5})).train()
    first, again = (model.generate(batch)[0] for _ in range(2))
    assert torch.equal(first, again)
    assert model.discriminator.training and not model.generator.training


@pytest.fixture
def generator_run(shards_folder: Path, tmp_path: Path) -> Path:
    """The folder of a run of ELECTRA with one checkpoint of random weights."""
    description = describe(with_objective(PRESETS["tiny"], "electra"), Shards(shards_folder))
    weights = {name: torch.randn_like(weight) * 0.1 for name, weight in build_model(description).named_parameters()}
    write_run(tmp_path / "source", description, {})
    save(tmp_path / "source" / CHECKPOINTS, 7, EngineState(7, {}, weights, {}), {}, keep_last=1)
    return tmp_path / "source"


def options(shards: Path, output: Path, source: Path | None, **changes: object) -> RunOptions:
    values = {
        "preset": "tiny",
        "objective": "fast_electra",
        "data": (shards,),
        "output": output,
        "generator_from": source and str(source),
        "set": STEPS,
        **changes,
    }
    return RunOptions.from_values(values)


def test_a_run_keeps_the_generator_bitwise_and_resumes_without_its_folder(
    shards_folder: Path, tmp_path: Path, generator_run: Path, launch: Callable[..., subprocess.Popen[str]]
) -> None:
    command: tuple[str | Path, ...] = (
        "pretrain/run.py",
        "--preset",
        "tiny",
        "--objective",
        "fast_electra",
        "--generator_from",
        generator_run,
    )
    command += ("--data", shards_folder, "--output", tmp_path / "run", "--set", *STEPS)
    command += ("--deepspeed_config", "ds_configs/zero0_fp32.json")
    source = load_trained(generator_run)[0].exported("generator").state_dict()
    finished(launch(0, *command))
    shutil.rmtree(generator_run)
    last = tmp_path / "run" / CHECKPOINTS / "step-00000004"
    weights = load_file(last / "weights.safetensors")
    shutil.rmtree(last)
    finished(launch(0, *command))
    again = load_file(last / "weights.safetensors")
    assert weights.keys() == again.keys() and all(torch.equal(weights[name], again[name]) for name in weights)
    moments = load_file(last / "optimizer.safetensors")
    assert not any(name.partition("/")[2].startswith(FROZEN) for name in moments)
    trained, step = load_trained(tmp_path / "run")
    assert (step, trained.progress) == (4, 1.0)
    kept = trained.exported("generator").state_dict()
    assert kept.keys() == source.keys() and all(torch.equal(kept[name], source[name]) for name in source)
    evaluate(EvaluateOptions(runs=(tmp_path / "run",), sequences=8, batch_size=8))
    assert json.loads((tmp_path / "run" / "evaluation" / "metrics.json").read_text())["objective"] == "fast_electra"
    export(ExportOptions(run=tmp_path / "run", out=tmp_path / "out"))
    load_encoder(tmp_path / "out")


def test_a_frozen_generator_is_wanted_exactly_by_this_objective(
    shards_folder: Path, tmp_path: Path, generator_run: Path
) -> None:
    output = tmp_path / "run"
    with pytest.raises(ConfigError, match=r"^generator_from: not given, but the objective fast_electra needs"):
        make_plan(options(shards_folder, output, None))
    with pytest.raises(ConfigError, match=r"^generator_from: got .*, but the objective electra trains its own"):
        make_plan(options(shards_folder, output, generator_run, objective="electra"))
    with pytest.raises(ConfigError, match=r"^init_from: got .* with --generator_from; give one of them"):
        make_plan(options(shards_folder, output, generator_run, init_from=(str(generator_run),)))
    with pytest.raises(ConfigError, match=r"^generator_from: .* has hidden_size 64, expected 32"):
        given = options(shards_folder, output, generator_run)
        make_plan(given.model_copy(update={"set": (*given.set, "model.generator_hidden_size=32")}))


def test_a_generator_of_another_vocabulary_is_refused(shards_folder: Path, tmp_path: Path, generator_run: Path) -> None:
    path = generator_run / "tokenizer" / "vocab.txt"
    tokens = path.read_text().splitlines()
    tokens[-1], tokens[-2] = tokens[-2], tokens[-1]
    path.write_text("\n".join(tokens) + "\n")
    (generator_run / "tokenizer" / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"^generator_from: the vocabulary of .* is not the data's"):
        make_plan(options(shards_folder, tmp_path / "run", generator_run))


@pytest.mark.parametrize("sharing", ["nes", "gdes"])
def test_the_discriminators_embeddings_start_fresh_or_as_those_of_the_trained_generator(
    sharing: str, shards_folder: Path, tmp_path: Path, generator_run: Path
) -> None:
    given = options(shards_folder, tmp_path / "run", generator_run)
    plan = make_plan(given.model_copy(update={"set": (*given.set, f"model.embedding_sharing={sharing}")}))
    model, fresh = initial_model(plan.description), build_model(plan.description)
    words = model.exported(".").electra.embeddings.word_embeddings.weight
    source = (model.generator if sharing == "gdes" else fresh.discriminator).embeddings.word_embeddings.weight
    assert torch.equal(words, source)
    assert not torch.equal(
        model.generator.embeddings.word_embeddings.weight, fresh.generator.embeddings.word_embeddings.weight
    )


def test_a_run_says_that_it_shares_no_embeddings_and_refuses_to() -> None:
    run = with_objective(PRESETS["tiny"], "fast_electra")
    assert run.model.embedding_sharing == "nes" == with_row(PRESETS["tiny"], "Fast-ELECTRA").model.embedding_sharing
    with pytest.raises(
        ConfigError, match=r"model\.embedding_sharing: got 'es' with objective fast_electra, expected nes"
    ):
        with_overrides(run, ["model.embedding_sharing=es"])
    for field in ("optim.discriminator_lr_scale=2", "optim.discriminator_clipping=1"):
        with pytest.raises(ConfigError, match="with objective fast_electra, which trains one encoder"):
            with_overrides(run, [field])


def test_a_generator_loss_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"gamma: got 1\.0, expected 0: the generator is frozen"):
        new_model("fast_electra", gamma=1.0)
