"""finetune/running/train.py: training equals plain AdamW with layer-wise decay for any ranks, micro-batches and stage.

A run that was stopped or killed ends like an undisturbed one.
"""

import gc
import json
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from electra_sampler.foundation.config import ConfigError
from electra_sampler.foundation.ordering import key_of
from finetune.config import FinetuneConfig, FinetuneOptions, GlueConfig, GlueOptions, SquadOptions, TaggingOptions
from finetune.glue.files import load_task
from finetune.glue.job import GlueJob, SequenceClassifier, make_job
from finetune.glue.tasks import TASKS
from finetune.running.job import collate, epoch_batches
from finetune.running.train import Outcome, Run, Saving, Stopped, groups, layer_scale, train
from pretrain.engine.optim import decays, learning_rate
from pretrain.huggingface.folders import load_tokenizer
from pretrain.huggingface.stored import read_stored
from pretrain.job.processes import World, start_processes
from tests.conftest import REPOSITORY, flip_bit
from tests.deepspeed_values import values_of
from tests.finetune.conftest import SETTINGS, run_queue, small_encoder
from tests.warm import outputs, two_ranks

SEED = 3
SCRIPT = "tests/finetune/running/test_train.py"


@pytest.fixture(scope="module")
def job(stock_model: Path, cola_folder: Path) -> GlueJob:
    return read_job(stock_model, cola_folder)


def read_job(model: Path, data_folder: Path) -> GlueJob:
    return make_job(TASKS["CoLA"], load_task(TASKS["CoLA"], str(data_folder)), load_tokenizer(model), SETTINGS)


def deepspeed_file(folder: Path, stage: int = 0, micro: int | str = "auto") -> Path:
    path = folder / f"zero{stage}_{micro}.json"
    path.write_text(json.dumps(values_of(f"zero{stage}_fp32") | {"train_micro_batch_size_per_gpu": micro}))
    return path


def plain_adamw(model: SequenceClassifier, job: GlueJob, settings: GlueConfig) -> None:
    """Trains the same run without engine, ranks or micro-batches: one group per parameter, the whole batch at once."""
    layers = model.electra.config.num_hidden_layers
    scales = [layer_scale(name, layers, settings.layer_decay) for name, _ in model.named_parameters()]
    optimizer = torch.optim.AdamW(
        [
            {"params": [parameter], "weight_decay": settings.weight_decay if decays(name) else 0.0}
            for name, parameter in model.named_parameters()
        ],
        betas=settings.betas,
        eps=settings.eps,
    )
    size, step = len(job.train.targets), 0
    total = -(-size // settings.batch_size) * settings.epochs
    for epoch in range(settings.epochs):
        lengths = [len(ids) for ids in job.train.input_ids]
        for chosen in epoch_batches(lengths, settings.batch_size, settings.length_pool, SEED, epoch):
            batch = collate(job.train, chosen, job.pad_id, torch.device("cpu"))
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(batch), batch.target_B.long()).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.gradient_clipping)
            rate = learning_rate(step, base=settings.learning_rate, warmup_steps=int(0.1 * total), total_steps=total)
            for group, scale in zip(optimizer.param_groups, scales, strict=True):
                group["lr"] = rate * scale
            optimizer.step()
            step += 1


def test_a_run_is_plain_adamw_with_layer_wise_decay(
    stock_model: Path, job: GlueJob, world: World, tmp_path: Path
) -> None:
    torch.manual_seed(key_of(SEED, 0))
    expected = SequenceClassifier(
        read_stored(stock_model).encoder(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0), 2
    )
    plain_adamw(expected, job, SETTINGS)

    torch.manual_seed(key_of(SEED, 0))
    encoder = read_stored(stock_model).encoder(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    run = Run(encoder, job, SETTINGS, SEED, deepspeed_file(tmp_path, micro=4), world)
    run.train()
    for name, weight in run.engine.module.named_parameters():
        torch.testing.assert_close(weight.data, expected.get_parameter(name).data, rtol=0, atol=2e-5, msg=name)


def go(stock_model: Path, job: GlueJob, world: World, config: Path, seed: int = SEED, **changes: Any) -> Outcome:
    return train(read_stored(stock_model), False, job, SETTINGS.model_copy(update=changes), seed, config, world)


@pytest.fixture(scope="module")
def plain(stock_model: Path, job: GlueJob, world: World, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """One epoch without ZeRO, in float32."""
    return go(stock_model, job, world, deepspeed_file(tmp_path_factory.mktemp("plain")), epochs=1)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_stages_learn_the_same(
    stage: int, plain: Outcome, stock_model: Path, job: GlueJob, world: World, tmp_path: Path
) -> None:
    zero = go(stock_model, job, world, deepspeed_file(tmp_path, stage, micro=4), epochs=1)
    assert zero.train_losses == pytest.approx(plain.train_losses, abs=1e-5)


def test_bf16_learns_the_same_up_to_rounding(plain: Outcome, stock_model: Path, job: GlueJob, world: World) -> None:
    half = go(stock_model, job, world, REPOSITORY / "ds_configs" / "zero1_bf16.json", epochs=1)
    assert (plain.precision, half.precision) == ("float32", "bfloat16")
    assert half.train_losses != plain.train_losses
    assert half.train_losses == pytest.approx(plain.train_losses, abs=0.02)


def test_equal_seeds_give_equal_runs_and_other_seeds_others(
    stock_model: Path, job: GlueJob, world: World, tmp_path: Path
) -> None:
    config = deepspeed_file(tmp_path)
    first, again, other = (
        go(stock_model, job, world, config, seed, epochs=1, dropout=0.1, attention_dropout=0.1) for seed in (1, 1, 2)
    )
    assert first == again
    assert first.train_losses != other.train_losses


def test_best_and_last_scores_are_those_of_epochs(
    stock_model: Path, job: GlueJob, world: World, tmp_path: Path
) -> None:
    outcome = go(stock_model, job, world, deepspeed_file(tmp_path), epochs=6)
    assert outcome.best["dev"]["matthews"] >= outcome.last["dev"]["matthews"] > 0.5
    assert (outcome.collapsed, len(outcome.train_losses)) == (None, 6)


def test_a_run_with_constant_predictions_is_flagged(
    stock_model: Path, job: GlueJob, world: World, tmp_path: Path
) -> None:
    one_label = replace(job, train=job.train._replace(targets=[1.0] * len(job.train.targets)))
    outcome = go(stock_model, one_label, world, deepspeed_file(tmp_path))
    assert (outcome.collapsed, outcome.last) == ("constant prediction", {"dev": {"matthews": 0.0}})


@pytest.mark.parametrize("stage", [0, 1])
def test_a_run_that_diverges_ends_and_is_flagged(
    stage: int, stock_model: Path, job: GlueJob, world: World, tmp_path: Path
) -> None:
    outcome = go(stock_model, job, world, deepspeed_file(tmp_path, stage), learning_rate=1e30, epochs=3)
    assert (outcome.collapsed, outcome.train_losses[-1]) == ("non-finite loss", None)
    assert np.isfinite(outcome.last["dev"]["matthews"])


def test_a_finished_run_deletes_its_model(stock_model: Path, job: GlueJob, world: World, tmp_path: Path) -> None:
    run = Run(read_stored(stock_model).encoder(), job, SETTINGS, SEED, deepspeed_file(tmp_path), world)
    run.train_epoch(0)
    weight = weakref.ref(run.engine.module)
    del run
    gc.collect()
    assert weight() is None


def test_two_ranks_learn_the_same_as_one(
    stock_model: Path, cola_folder: Path, job: GlueJob, world: World, tmp_path: Path
) -> None:
    alone = go(stock_model, job, world, deepspeed_file(tmp_path))
    said = outputs(two_ranks(SCRIPT, "learn", stock_model, cola_folder, deepspeed_file(tmp_path)))
    outcomes = [json.loads(text.splitlines()[-1]) for text in said]
    assert outcomes[0] == outcomes[1]
    assert outcomes[0]["train_losses"] == pytest.approx(alone.train_losses, abs=1e-5)
    assert outcomes[0]["last"]["dev"]["matthews"] == pytest.approx(alone.last["dev"]["matthews"], abs=0.05)


def one_rank(stock_model: str, cola_folder: str, config: str) -> None:
    """Runs in each process of `test_two_ranks_learn_the_same_as_one`."""
    outcome = go(Path(stock_model), read_job(Path(stock_model), Path(cola_folder)), start_processes(), Path(config))
    print("\n" + json.dumps(outcome._asdict()), flush=True)


WITH_DROPOUT = SETTINGS.model_copy(update={"dropout": 0.1, "attention_dropout": 0.1, "learning_rate": 1e-2})
BATCHES = 26  # per epoch of 203 examples, eight at a time


def never() -> bool:
    """Never asks for a stop."""
    return False


def stop_after(batches: int) -> Callable[[], bool]:
    """Asks for a stop once, after so many batches."""
    return chain(repeat(False, batches - 1), [True], repeat(False)).__next__


class Killed(Exception):
    """Simulates a kill: code after it that would save does not run."""


def killed_after(batches: int) -> Iterator[bool]:
    """Asks for no stop, and is killed after so many batches."""
    yield from repeat(False, batches - 1)
    raise Killed


def go_on(model: Path, job: GlueJob, world: World, folder: Path, keeper: Saving | None) -> Outcome:
    return train(read_stored(model), False, job, WITH_DROPOUT, 5, deepspeed_file(folder), world, keeper)


@pytest.fixture(scope="module")
def whole(stock_model: Path, job: GlueJob, world: World, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return go_on(stock_model, job, world, tmp_path_factory.mktemp("whole"), None)


@pytest.mark.parametrize(
    ("end", "ending", "every", "step"),
    [
        # in the first epoch, at its end (after saving, before evaluating), and in the second
        *((Stopped, stop_after(batches), 1000, batches) for batches in (7, BATCHES, BATCHES + 3)),
        (Killed, killed_after(19).__next__, 8, 16),
    ],
    ids=["stopped", "stopped at an epoch's end", "stopped in the second epoch", "killed"],
)
def test_a_stopped_or_killed_run_resumes_from_its_last_checkpoint_and_ends_bitwise_like_an_undisturbed_one(
    end: type[Exception],
    ending: Callable[[], bool],
    every: int,
    step: int,
    whole: Outcome,
    stock_model: Path,
    job: GlueJob,
    world: World,
    tmp_path: Path,
) -> None:
    with pytest.raises(end):
        go_on(stock_model, job, world, tmp_path, Saving(tmp_path / "run", ending, every))
    assert [path.name for path in (tmp_path / "run").iterdir()] == [f"step-{step:08d}"]
    assert go_on(stock_model, job, world, tmp_path, Saving(tmp_path / "run", never)) == whole


def test_a_run_with_a_damaged_checkpoint_does_not_start_over(
    stock_model: Path, job: GlueJob, world: World, tmp_path: Path
) -> None:
    with pytest.raises(Stopped):
        go_on(stock_model, job, world, tmp_path, Saving(tmp_path / "run", stop_after(4)))
    flip_bit(tmp_path / "run" / "step-00000004" / "state.json")
    with pytest.raises(ConfigError, match=r"checkpoints: none in .*run is intact: step-00000004 \(.*state\.json"):
        go_on(stock_model, job, world, tmp_path, Saving(tmp_path / "run", never))
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["step-00000004"]


def test_loss_and_stop_requests_share_one_all_reduce_per_batch(
    stock_model: Path, job: GlueJob, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = Saving(tmp_path / "run", never)
    run = Run(read_stored(stock_model).encoder(), job, WITH_DROPOUT, 5, deepspeed_file(tmp_path), world, keeper)
    sums, plain = [], dist.all_reduce

    def counted(tensor: torch.Tensor) -> None:
        sums.append(tensor.numel())
        plain(tensor)

    monkeypatch.setattr(dist, "all_reduce", counted)
    run.train_epoch(0)
    assert sums == [2] * BATCHES


def test_a_stop_request_to_one_rank_stops_all(stock_model: Path, cola_folder: Path, tmp_path: Path) -> None:
    said = outputs(two_ranks(SCRIPT, "stop", stock_model, cola_folder, tmp_path))
    assert [text.splitlines()[-1] for text in said] == ["stopped", "stopped"]
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["step-00000004"]


def stop_one_rank(model: str, data: str, folder: str) -> None:
    """Runs in each process of `test_a_stop_request_to_one_rank_stops_all`; the second rank is asked to stop."""
    world = start_processes()
    keeper = Saving(Path(folder) / "run", stop_after(4) if world.rank == 1 else never)
    own = Path(folder) / f"rank{world.rank}"  # for its DeepSpeed file, which the other would read half-written
    own.mkdir()
    try:
        go_on(Path(model), read_job(Path(model), Path(data)), world, own, keeper)
    except Stopped:
        print("\nstopped", flush=True)


if __name__ == "__main__":
    {"learn": one_rank, "stop": stop_one_rank}[sys.argv[1]](*sys.argv[2:])


DECAYED = FinetuneConfig(learning_rate=1e-3, epochs=1, batch_size=4, weight_decay=0.01, max_length=16)


def twelve_layers() -> SequenceClassifier:
    return SequenceClassifier(small_encoder(num_hidden_layers=12), 2)


@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("head.weight", 1.0),
        ("electra.encoder.layer.11.output.dense.weight", 0.8),
        ("electra.encoder.layer.1.attention.self.query.bias", 0.8**11),
        ("electra.encoder.layer.0.attention.self.query.bias", 0.0687),
        ("electra.embeddings.word_embeddings.weight", 0.0550),
        ("electra.embeddings_project.weight", 0.0550),
        ("electra.encoder.relative_attention_bias.weight", 0.0550),
    ],
)
def test_a_layers_factor_is_decay_to_the_power_of_its_depth_below_the_head(name: str, factor: float) -> None:
    assert name in dict(twelve_layers().named_parameters())
    assert layer_scale(name, 12, 0.8) == pytest.approx(factor, abs=5e-5)


def test_each_parameter_is_in_the_group_of_its_layer() -> None:
    model = twelve_layers()
    named = {id(parameter): name for name, parameter in model.named_parameters()}
    made = groups(model, 12, DECAYED)
    assert sorted(id(p) for group in made for p in group["params"]) == sorted(named)
    for group in made:
        for parameter in group["params"]:
            assert group["lr_scale"] == layer_scale(named[id(parameter)], 12, 0.8)
    assert len({group["lr_scale"] for group in made}) == 14


def test_without_decay_every_layer_has_the_same_rate() -> None:
    made = groups(twelve_layers(), 12, DECAYED.model_copy(update={"layer_decay": 1.0}))
    assert {group["lr_scale"] for group in made} == {1.0}


@pytest.mark.parametrize(
    ("command", "options", "data", "name"),
    [
        (GlueOptions, {"task": ("CoLA",)}, "cola_folder", "CoLA"),
        (SquadOptions, {}, "squad_folder", "SQuAD 2.0"),
        (SquadOptions, {"version": "1.1"}, "squad_folder", "SQuAD 1.1"),
        (TaggingOptions, {"task": "NER"}, "tagging_folder", "NER"),
    ],
)
def test_it_learns_every_kind_of_task(
    command: type[FinetuneOptions],
    options: dict[str, Any],
    data: str,
    name: str,
    modern_model: Path,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    given = {"model": str(modern_model), "data_dir": str(request.getfixturevalue(data)), "seeds": (1,), "keep": "none"}
    short = {"epochs": 4, "batch_size": 8, "learning_rate": 1e-2}
    (record,) = run_queue(command, tmp_path, **given | short | options)
    assert record.run.task == name
    first, *_, last = record.train_losses
    assert first is not None and last is not None and last < first / 2
