"""Claims about the plan of a run: options, presets and overrides combined and checked against the data."""

import os
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import pytest

from electra_sampler.foundation.config import ConfigError
from pretrain.method.registry import BUILT_IN
from pretrain.planning.estimates import GPUS, memory_per_process
from pretrain.planning.options import RunOptions
from pretrain.planning.plan import Given, list_settings, make_plan, unfit
from pretrain.planning.plan_warnings import memory_of
from pretrain.runs.folder import write_run
from tests.pretrain.conftest import SAMPLERS, options


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"objective": "hp_dist"}, ("hp_dist", 1.0, 1.0)),
        ({"objective": "hp_dist", "set": ("objective.lambda1=3",)}, ("hp_dist", 3.0, 1.0)),
        ({"row": "HP_Loss lambda1=10"}, ("hp_loss", 10.0, 0.0)),
    ],
)
def test_an_objective_or_a_row_of_the_papers_tables_sets_its_weights_and_overrides_take_precedence(
    given: dict[str, object], expected: tuple[str, float, float], shards_folder: Path, tmp_path: Path
) -> None:
    objective: Any = make_plan(options(shards_folder, tmp_path, **given)).run.objective
    assert (objective.name, objective.lambda1, objective.gamma) == expected


def test_a_row_excludes_an_objective(shards_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="row: got 'ELECTRA' with --objective"):
        make_plan(options(shards_folder, tmp_path, row="ELECTRA", objective="electra"))


def test_every_mistake_in_options_settings_data_and_folder_is_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    given = {"set": ("optim.stpes=3", "deepspeed.gradient_cliping=1"), "forecast": "a100", "keep_optimizer": True}
    with pytest.raises(ConfigError) as error:
        make_plan(options(tmp_path / "no shards", tmp_path / "file", **given))
    said = str(error.value)
    mistakes = ("forecast", "keep_optimizer", "optim.stpes", "no shards", "deepspeed.gradient_cliping", "output")
    assert all(mistake in said for mistake in mistakes), said


def test_in_any_order_the_checks_say_the_same(shards_folder: Path, tmp_path: Path) -> None:
    read = ("donors", "run", "shards", "started", "deepspeed")
    (tmp_path / "file").touch()
    wrong = {
        "preset": "tiny",
        "data": (shards_folder / "no shards",),
        "output": tmp_path / "file",
        "set": ("mask_rate=2", "deepspeed.gradient_cliping=1"),
        "init_from": ("no/model",),
        "keep_optimizer": True,
        "forecast": "a100",
    }
    fitting_badly = {
        "preset": "tiny",
        "data": (shards_folder,),
        "output": tmp_path,
        "set": ("mask_rate=0.75", "model.max_positions=16"),
        "graphs": "on",
    }
    unread = RunOptions.from_values(wrong)
    said = sorted(Given(unread).problems(*read))
    assert len(said) == 6, said
    misfits = sorted(chain.from_iterable(unfit(Given(RunOptions.from_values(fitting_badly)))))
    assert len(misfits) == 3, misfits
    for seed in range(5):
        assert sorted(Given(unread).problems(*Random(seed).sample(read, len(read)))) == said
        checks = [*unfit(Given(RunOptions.from_values(fitting_badly)))]
        Random(seed).shuffle(checks)
        assert sorted(chain.from_iterable(checks)) == misfits


def test_a_plan_reads_no_file_twice(shards_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path, make_plan(options(shards_folder, tmp_path)).description, {})
    read: list[str] = []
    real = Path.open

    def noted(path: Path, *args: Any, **others: Any) -> Any:
        read.append(path.name)
        return real(path, *args, **others)

    monkeypatch.setattr(Path, "open", noted)
    make_plan(options(shards_folder, tmp_path))
    assert read.count("run.json") == 1
    assert sum(name.startswith("zero") for name in read) == 1


def test_the_batch_is_divided_among_the_launchers_processes(
    shards_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "WORLD_SIZE", "4")
    assert make_plan(options(shards_folder, tmp_path)).here.deepspeed.micro_batch_size == 16
    with pytest.raises(ConfigError, match="batch"):
        make_plan(options(shards_folder, tmp_path, set=("batch_size=30",)))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"deepspeed_config": "zero3_bf16"}, "with ZeRO stage 3, which moves the weights"),
        ({"set": ("deepspeed.zero_optimization.stage=2",)}, "with ZeRO stage 2, which reduces .*; use stage 1"),
        ({"set": ("deepspeed.zero_optimization.overlap_comm=true",)}, "with overlap_comm, which reduces"),
        ({"set": ("deepspeed.zero_optimization.offload_optimizer.device=cpu",)}, "with offload_optimizer, which moves"),
        ({"set": ("deepspeed.activation_checkpointing={}",)}, "with activation_checkpointing, which reads"),
        ({"forecast": None}, "without a GPU"),
    ],
)
def test_graphs_are_refused_where_a_micro_batch_cannot_be_replayed(
    changes: dict[str, object], problem: str, shards_folder: Path, tmp_path: Path
) -> None:
    given = {"deepspeed_config": "zero1_bf16", "dry_run": True, "forecast": "a100", "graphs": "on"}
    assert make_plan(options(shards_folder, tmp_path, **given)).here.graphs
    with pytest.raises(ConfigError, match=rf"^graphs: got on {problem}.*; leave it out$"):
        make_plan(options(shards_folder, tmp_path, **given | changes))
    assert not make_plan(options(shards_folder, tmp_path, **given | changes | {"graphs": "auto"})).here.graphs


@pytest.mark.parametrize(
    ("changes", "on"),
    [({}, True), ({"graphs": "off"}, False), ({"compile": True}, False), ({"deepspeed_config": "zero1_fp16"}, True)],
)
def test_gpus_replay_graphs_unless_told_otherwise_in_the_memory_of_eager_steps(
    changes: dict[str, object], on: bool, shards_folder: Path, tmp_path: Path
) -> None:
    given = {"deepspeed_config": "zero1_bf16", "dry_run": True, "forecast": "a100"}
    plan = make_plan(options(shards_folder, tmp_path, **given | changes))
    assert plan.here.graphs is on
    kept = memory_per_process(plan.here.deepspeed, 1, 1, plan.sizes, (8, 0)).activations
    assert memory_of(plan, 1, GPUS["a100", "bf16"]).activations == kept


def test_a_resume_keeps_the_runs_precision_unless_another_is_named(shards_folder: Path, tmp_path: Path) -> None:
    here = make_plan(options(shards_folder, tmp_path))
    assert here.description.precision == here.here.deepspeed.precision and here.started is None
    for precision, file in (("bf16", "zero1_bf16"), ("fp32", "zero0_fp32")):
        write_run(tmp_path, here.description.model_copy(update={"precision": precision}), {})
        again = make_plan(options(shards_folder, tmp_path))
        assert (again.here.file.path.stem, again.here.file.reason) == (file, "as the run was started")
        assert again.started is not None
        named = make_plan(options(shards_folder, tmp_path, deepspeed_config="zero1_fp32"))
        assert named.here.deepspeed.precision == "fp32"


def test_a_run_started_in_fp16_is_not_continued_without_a_gpu_and_the_line_says_how(
    shards_folder: Path, tmp_path: Path
) -> None:
    description = make_plan(options(shards_folder, tmp_path)).description
    write_run(tmp_path, description.model_copy(update={"precision": "fp16"}), {})
    with pytest.raises(
        ConfigError, match=r"^deepspeed_config: .* was started in fp16, which needs a GPU; .*with --deep"
    ):
        make_plan(options(shards_folder, tmp_path))


def test_the_plan_takes_at_most_six_lines_and_names_precision_file_and_reason(
    shards_folder: Path, tmp_path: Path
) -> None:
    lines = str(make_plan(options(shards_folder, tmp_path, deepspeed_config="zero1_fp32"))).splitlines()
    assert len(lines) <= 6
    assert lines[-1] == "precision   fp32 (zero1_fp32): as given by --deepspeed_config"


def test_only_a_run_has_an_optimizer_to_keep(shards_folder: Path, tmp_path: Path) -> None:
    for given, name in (((), "nothing"), (("someone/model",), "someone/model"), (("a/b", "c/d"), "a/b c/d")):
        message = f"^keep_optimizer: got --init_from {name}, expected a run folder, since only its checkpoints hold"
        with pytest.raises(ConfigError, match=message):
            make_plan(options(shards_folder, tmp_path, init_from=given, keep_optimizer=True))


def listed(**given: object) -> dict[str, tuple[str, str]]:
    """Value and meaning of each listed key."""
    lines = list_settings(RunOptions.from_values(given)).splitlines()[1:]
    assert max(map(len, lines)) <= 120
    rows = [line.split(maxsplit=2) for line in lines if line and not line.startswith(" ")]
    return {key: (value, meaning) for key, value, meaning in rows}


def test_every_key_of_set_is_listed_with_its_meaning_and_its_value_under_the_other_options(
    shards_folder: Path, tmp_path: Path
) -> None:
    shown = listed(
        preset="tiny",
        deepspeed_config="zero1_bf16",
        objective="hp_dist",
        set=("optim.lr=1e-4", "deepspeed.zero_optimization.stage=2"),
    )
    values = {
        "optim.lr": "0.0001",
        "objective.lambda1": "1.0",
        "objective.mixture": "0.0",
        "deepspeed.zero_optimization.stage": "2",
        "deepspeed.bf16.enabled": "true",
    }
    assert {key: shown[key][0] for key in values} == values
    run = make_plan(options(shards_folder, tmp_path, objective="hp_dist")).run.model_dump()
    sections = {name: values for name, values in run.items() if isinstance(values, dict)}
    keys = {f"{section}.{key}" for section, values in sections.items() for key in values} | run.keys() - sections.keys()
    assert shown.keys() >= keys - {"objective.name", "model.backbone"}  # set by --objective and --preset
    assert shown["log_every"] == ("50", "Steps between log lines.")


@pytest.mark.parametrize("objective", (*BUILT_IN, *SAMPLERS))
def test_every_listed_key_is_accepted_by_set(objective: str) -> None:
    own = [f"{key}={value}" for key, (value, _) in listed(objective=objective).items() if value != "null"]
    given = {"objective": objective}
    assert list_settings(RunOptions.from_values(given | {"set": own})) == list_settings(RunOptions.from_values(given))


@pytest.mark.parametrize(
    ("most", "more", "said"),
    [
        (
            "model.max_positions=32",
            "model.max_positions=16",
            r"model\.max_positions: got 16, but the sequences .* are 32 long",
        ),
        # the ten copies of these shards are a shuffle of six and one of four
        (
            "mask_rate=0.6",
            "mask_rate=0.75",
            r"mask_rate: got 0\.75, which takes 5 mask copies of one shuffle, but of the 10 in .* the last shuffle has"
            r" 4; use --set mask_rate=0\.6 at most, or build shards with --mask_copies 12$",
        ),
    ],
    ids=["sequences longer than the model", "a mask larger than the copies of one shuffle"],
)
def test_a_run_that_the_shards_are_not_made_for_is_refused(
    most: str, more: str, said: str, shards_folder: Path, tmp_path: Path
) -> None:
    make_plan(options(shards_folder, tmp_path, set=(most,)))
    with pytest.raises(ConfigError, match=said):
        make_plan(options(shards_folder, tmp_path, set=(more,)))


def test_overrides_of_deepspeeds_values_do_not_change_the_run(shards_folder: Path, tmp_path: Path) -> None:
    plain = make_plan(options(shards_folder, tmp_path, set=("seed=3",)))
    overrides = ("deepspeed.train_micro_batch_size_per_gpu=8", "seed=3", "deepspeed.zero_optimization.stage=2")
    changed = make_plan(options(shards_folder, tmp_path, set=overrides))
    assert changed.description == plain.description
    assert changed.here.deepspeed.micro_batch_size == 8
    assert changed.here.deepspeed.accumulation_steps == 8 * plain.here.deepspeed.accumulation_steps
    assert changed.here.deepspeed.json["zero_optimization"] == plain.here.deepspeed.json["zero_optimization"] | {
        "stage": 2
    }


def test_a_plan_refuses_a_folder_of_other_files(shards_folder: Path, tmp_path: Path) -> None:
    for name in ("metrics.jsonl", "deepspeed.json"):
        (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match=rf"output: {tmp_path} holds metrics\.jsonl, deepspeed\.json, which no run"):
        make_plan(options(shards_folder, tmp_path))
