"""Claims about the health checks, on records written by the real log."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_prep.build_shards import BuildOptions
from data_prep.build_shards import main as build_shards
from electra_sampler.foundation.config import ConfigError
from pretrain.analysis.health import LEAST_STEPS, diagnose, report
from pretrain.analysis.run_history import read_history
from pretrain.analysis.symptoms import Symptoms
from pretrain.data.shards import Shards
from pretrain.doctor import DoctorOptions, main
from pretrain.presets import PRESETS, with_objective
from pretrain.runs.folder import write_run
from pretrain.runs.log import RunLog
from tests.pretrain.runs.described import described

STEPS, EVERY = 600, 50
HEALTHY: dict[str, Any] = {
    "mlm_loss": 4.0,
    "mlm_accuracy": 0.3,
    "replace_rate": 0.7,
    "replaced_share": 0.105,
    "discriminator_loss": 0.25,
    "discriminator_entropy": 0.336,
    "accuracy_all": 0.92,
    "auc_all": 0.85,
    "estimate_correlation": {"original": 0.7, "replaced": 0.6, "all": 0.65},
    "ratio_p1": 0.4,
    "ratio_p50": 0.9,
    "ratio_p99": 3.0,
    "epoch": 1.5,
    "skipped": 1,
    "loss_spikes": 0,
    "samples_per_second": 640.0,
    "slowest_rank": 1,
    "slowest_rank_seconds": 0.021,
    "median_rank_seconds": 0.02,
}
FEW_REPLACED = {
    "replace_rate": 0.06,
    "replaced_share": 0.009,
    "discriminator_loss": 0.03,
    "discriminator_entropy": 0.04,
}
SICK: dict[str, tuple[str, dict[str, Any]]] = {
    "generator too good": ("hp_loss", {"mlm_accuracy": 0.95} | FEW_REPLACED),
    "generator does not learn": ("mlm", {"mlm_loss": 5.9}),
    "discriminator on the plateau": ("electra", {"discriminator_loss": 0.33, "accuracy_all": 0.895, "auc_all": 0.52}),
    "sampling head dead": ("hp_loss", {"estimate_correlation": {"original": 0.01, "replaced": 0.02, "all": 0.4}}),
    "importance ratios exploding": ("hp_dist", {"ratio_p99": 50.0}),
    "data repeated or unshuffled": ("hp_loss", {"mlm_loss": 2.5, "epoch": 12.0}),
    "learning rate too high": ("hp_loss", {"loss_spikes": 40}),
    "padding waste": ("hp_loss", {"length": 15.0}),
    "a rank straggles": ("hp_loss", {"slowest_rank_seconds": 0.05}),
}
OF_REPLACEMENTS = {name for name in HEALTHY if name.startswith(("repl", "disc", "accuracy", "auc", "est", "ratio"))}
OF_ALL = {
    "padding waste",
    "vocabulary does not fit",
    "data repeated or unshuffled",
    "learning rate too high",
    "slow precision",
}
IN_HARDWARE = {"step": 0, "precision": "bfloat16", "matrix_peak_tflops": 0.3, "fp32_peak_tflops": 0.2}
EMULATED = IN_HARDWARE | {"matrix_peak_tflops": 0.004, "fp32_peak_tflops": 0.05}
CHECKS = {
    "mlm": OF_ALL | {"a rank straggles", "generator does not learn"},
    "electra": OF_ALL | SICK.keys() - {"sampling head dead", "importance ratios exploding"},
    "hp_loss": OF_ALL | SICK.keys() - {"importance ratios exploding"},
    "hp_dist": OF_ALL | SICK.keys() - {"sampling head dead"},
    "hp_loss_power": OF_ALL | SICK.keys() - {"importance ratios exploding"},
    "oracle": OF_ALL | SICK.keys() - {"sampling head dead", "importance ratios exploding"},
    "unigram": OF_ALL | SICK.keys() - {"sampling head dead", "importance ratios exploding", "generator does not learn"},
}
Write = Callable[..., Path]


@pytest.fixture
def write(shards_folder: Path, tmp_path: Path) -> Write:
    """Writes a run folder with the same values in every record, or with values computed from the step."""

    def run(
        objective: str = "hp_loss",
        values: Any = (),
        steps: int = STEPS,
        folder: Path = shards_folder,
        held_out: Any = (),
    ) -> Path:
        config = with_objective(PRESETS["tiny"], objective)
        write_run(tmp_path / "run", described(config, Shards(folder)), {})
        log = RunLog(tmp_path / "run", step=0, total_steps=steps)
        for step in range(EVERY, steps + 1, EVERY):
            record = HEALTHY | dict(values(step) if callable(values) else values)
            if objective == "mlm":
                record = {name: record[name] for name in record.keys() - OF_REPLACEMENTS}
            length = record.pop("length", 31.0)
            log.write("train", step, record | {"tokens_so_far": step * config.batch_size * length})
        detection = {"discriminator_loss": 0.26, "discriminator_entropy": 0.336} if objective != "mlm" else {}
        log.write("held_out", steps, {"mlm_loss": 4.05} | detection | dict(held_out))
        log.close()
        started(tmp_path / "run", IN_HARDWARE)
        return tmp_path / "run"

    return run


def started(folder: Path, *starts: dict[str, Any]) -> Path:
    """The run folder with these start records."""
    (folder / "starts.jsonl").write_text("".join(json.dumps(start) + "\n" for start in starts))
    return folder


@pytest.mark.parametrize("objective", CHECKS)
def test_nothing_is_found_in_a_healthy_run_and_every_check_is_made(objective: str, write: Write) -> None:
    folder = write(objective)
    diagnosis = diagnose(folder)
    assert diagnosis.findings == [] and diagnosis.skipped == []
    assert main(DoctorOptions(run=folder)) == 0 and report(diagnosis)[0] == "healthy"
    assert {answer.name for answer in diagnosis.checked} == CHECKS[objective] | (
        set() if objective == "mlm" else {"regime"}
    )


@pytest.mark.parametrize(("replaced", "is_near"), [(0.7, False), (0.95, True)])
def test_the_regime_is_told_beside_the_papers_and_is_no_illness(replaced: float, is_near: bool, write: Write) -> None:
    """In our studies of `tiny` p_G draws the original at 4.5% of the masks, in ELECTRA's own runs at about 60%."""
    diagnosis = diagnose(write("electra", {"replace_rate": replaced, "max_probability": {"p_G": [0.1] * 10}}))
    assert diagnosis.findings == []
    (told,) = (line for line in report(diagnosis) if line.startswith("  regime: "))
    assert (
        f"{1 - replaced:.1%} of the draws are originals (ELECTRA's authors: about 60%), 10.0% of p_G's maxima" in told
    )
    assert ("generator still near unigrams: samplers cannot differ yet" in told) == is_near


@pytest.mark.parametrize("name", SICK)
def test_each_problem_is_the_only_finding_and_has_its_threshold_and_steps(name: str, write: Write) -> None:
    objective, values = SICK[name]
    (finding,) = diagnose(write(objective, values)).findings
    assert finding.name == name
    assert "600" in finding.evidence and ("the limit is" in finding.evidence or "expected" in finding.evidence)
    for text in (finding.verdict, finding.evidence, finding.remedy):
        assert "\n" not in text and text.endswith(".")


OTHER_SIGNS: dict[str, tuple[str, dict[str, Any], str]] = {
    "a constant estimate": ("sampling head dead", {"values": {"estimate_correlation": {}}}, "loss is 0.000"),
    "fp16 skips one step in ten": (
        "learning rate too high",
        {"values": lambda step: {"skipped": step // 10}},
        "10.0% of the last 200 were skipped",
    ),
    "the loss rises again": (
        "learning rate too high",
        {"values": lambda step: {"mlm_loss": 3.0 if step < 350 else 4.0}},
        "1.00 nats above its lowest mean",
    ),
    "every token gets the same answer": (
        "learning rate too high",
        {"values": lambda step: {"auc_all": 0.5}},
        "0.0000 from chance",
    ),
    "a gap to held-out text after many passes": (
        "data repeated or unshuffled",
        {"objective": "mlm", "values": {"mlm_loss": 4.05 - 0.57, "epoch": 5.0}},
        r"was read 5 times \(the limit is 100\)\.$",
    ),
    "a discriminator that memorizes": (
        "data repeated or unshuffled",
        {"held_out": {"discriminator_loss": 0.3}},
        r"of the replaced share \+0\.149",
    ),
    "text read too often, though nothing is memorized": (
        "data repeated or unshuffled",
        {"values": {"epoch": 120.0}},
        r"read 120 times \(the limit is 100\)",
    ),
}


def test_a_run_that_a_gradient_that_is_not_finite_has_ended_is_not_healthy(write: Write) -> None:
    folder = write()
    (folder / "nonfinite-step-12.json").touch()  # the run has passed it since
    assert diagnose(folder).findings == []
    (folder / f"nonfinite-step-{STEPS + 1}.json").touch()
    (finding,) = diagnose(folder).findings
    assert finding.name == "learning rate too high"
    assert f"; the gradient of step {STEPS + 1} is not finite" in finding.evidence


@pytest.mark.parametrize("sign", OTHER_SIGNS)
def test_each_sign_of_a_problem_is_recognized(sign: str, write: Write) -> None:
    name, run, evidence = OTHER_SIGNS[sign]
    (finding,) = diagnose(write(**run)).findings
    assert finding.name == name
    assert re.search(evidence, finding.evidence)


NO_SIGNS: dict[str, Any] = {
    "steps skipped while fp16 finds its scale": {"skipped": 16},
    "ranks that are slow alternately": lambda step: {
        "slowest_rank_seconds": 0.05,
        "slowest_rank": step // EVERY % 2,
    },
}


@pytest.mark.parametrize("values", NO_SIGNS.values(), ids=NO_SIGNS)
def test_what_passes_or_alternates_is_no_problem(values: Any, write: Write) -> None:
    assert diagnose(write(values=values)).findings == []


@pytest.mark.parametrize("text", ["alien words", "alien letters"])
def test_a_vocabulary_learned_from_another_text_is_found(
    text: str, write: Write, shards_folder: Path, tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    letters = "abcdefghijklmnopqrstuvwxyz" if text == "alien words" else "αβγδε"
    words = ["".join(random.choice(list(letters), size=7)) for _ in range(3000)]
    (tmp_path / "text.txt").write_text("\n\n".join(" ".join(words[at : at + 60]) for at in range(0, 3000, 60)))
    options = {
        "input": [str(tmp_path / "text.txt")],
        "output": str(tmp_path / "shards"),
        "workers": 1,
        "seq_length": 32,
        "vocab": str(shards_folder / "tokenizer"),
        "packing": "full",
        "held_out": 0,
    }
    assert build_shards(BuildOptions.from_values(options)) == 0
    # a generator that has learned the text, whose entropy is different
    (finding,) = diagnose(write(values={"mlm_loss": 0.0}, folder=tmp_path / "shards")).findings[:1]
    assert finding.name == "vocabulary does not fit"


def test_a_precision_in_which_the_machine_is_slow_is_found_before_any_learning_with_both_speeds(write: Write) -> None:
    (finding,) = diagnose(started(write(steps=LEAST_STEPS - EVERY), IN_HARDWARE, EMULATED)).findings
    assert finding.name == "slow precision" and "12.5 times as fast in fp32" in finding.verdict
    assert "0.004 TFLOP/s in bfloat16 and at 0.05 in fp32, 12.5 times as fast; the limit is 2." in finding.evidence
    assert "--deepspeed_config ds_configs/zero1_fp32.json" in finding.remedy


def test_only_the_newest_start_decides_about_the_precision_and_one_in_fp32_cannot_be_slow(write: Write) -> None:
    newest = EMULATED | {"step": 50, "precision": "float32", "matrix_peak_tflops": 0.01}
    diagnosis = diagnose(started(write(), EMULATED, newest))
    assert diagnosis.findings == [] and diagnosis.skipped == []
    assert "slow precision" not in {answer.name for answer in diagnosis.checked}


@pytest.mark.parametrize(
    "starts",
    [
        (),
        ({"step": 0, "precision": "bfloat16", "matrix_peak_tflops": 0.004},),  # of an older version
        *((EMULATED | odd,) for odd in ({"step": "x"}, {"step": None}, {"matrix_peak_tflops": "1"})),
    ],
)
def test_a_start_without_both_speeds_or_damaged_leaves_the_precision_unchecked(starts: Any, write: Write) -> None:
    diagnosis = diagnose(started(write(), *starts))
    assert diagnosis.findings == [] and [reason.split(":")[0] for reason in diagnosis.skipped] == ["slow precision"]


def test_an_evaluation_is_compared_with_training_at_the_same_step(write: Write) -> None:
    """A training loss that has fallen since is not a sign of memorization."""
    folder = write(values=lambda step: {"mlm_loss": 4.0 if step <= 300 else 2.0})
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().replace('"held_out", "step": 600', '"held_out", "step": 300'))
    assert diagnose(folder).findings == []


@pytest.mark.parametrize("objective", ["hp_loss", "mlm"])
def test_few_held_out_novels_by_other_authors_are_no_repeated_text(objective: str, write: Write) -> None:
    diagnosis = diagnose(write(objective, {"mlm_loss": 4.05 - 0.57, "epoch": 3.19}))
    assert diagnosis.findings == []
    (repetition,) = [answer for answer in diagnosis.checked if answer.name == "data repeated or unshuffled"]
    assert "+0.57 nats" in repetition.evidence and "held-out documents differ" in repetition.evidence


def test_an_early_run_gets_no_verdict_but_obvious_problems_are_reported(write: Write) -> None:
    early, (objective, values) = LEAST_STEPS - 2 * EVERY, SICK["discriminator on the plateau"]
    with pytest.raises(ConfigError, match=f"too early to judge: look again {2 * EVERY} steps later"):
        diagnose(write(objective, values, steps=early))
    diagnosis = diagnose(write(objective, values | {"length": 15.0}, steps=early))
    assert [finding.name for finding in diagnosis.findings] == ["padding waste"]
    assert diagnosis.skipped == [f"checks of learning: too early to judge: look again {2 * EVERY} steps later"]


def test_a_run_that_ends_before_it_can_be_judged_is_not_to_be_looked_at_again(write: Write) -> None:
    folder = write(steps=LEAST_STEPS - EVERY)
    path = folder / "run.json"
    path.write_text(path.read_text().replace('"steps": 2000', f'"steps": {LEAST_STEPS - EVERY}'))
    with pytest.raises(ConfigError, match="too short to judge: got 450 steps, expected at least 500") as error:
        diagnose(folder)
    assert "look again" not in str(error.value)


def test_checks_that_could_not_be_made_are_listed(write: Write, shards_folder: Path) -> None:
    folder = write(values={"slowest_rank_seconds": 0.05})
    path = folder / "run.json"
    path.write_text(path.read_text().replace(str(shards_folder), str(folder / "gone")))
    lines = (folder / "metrics.jsonl").read_text().splitlines()[:-1]  # without the evaluation
    (folder / "metrics.jsonl").write_text("\n".join(line.replace('"slowest_rank"', '"old"') for line in lines) + "\n")
    diagnosis = diagnose(folder)
    assert diagnosis.findings == []
    text, held_out, rank = diagnosis.skipped
    assert f"{folder / 'gone'}" in text and "held-out" in held_out and "single process" in rank


def test_an_older_run_is_judged_by_the_records_it_has(write: Write) -> None:
    folder = write(values={"length": 15.0})
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().replace('"epoch"', '"other"').replace('"auc_all"', '"other"'))
    diagnosis = diagnose(folder)
    assert [finding.name for finding in diagnosis.findings] == ["padding waste"]
    assert [reason.split(":")[0] for reason in diagnosis.skipped] == ["checks of epoch", "checks of auc_all"]


@pytest.mark.parametrize(
    ("objective", "value"),
    [*(("hp_loss", value) for value in ("0", "-1", "1e308", "1" + 400 * "0", '"1"')), ("hp_dist", "NaN")],
)
def test_whatever_the_values_of_a_log_are_every_check_is_made_or_listed_and_none_says_nan(
    objective: str, value: str, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(objective)
    path = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    usual = {name for line in lines for name in line} - {"kind", "step"}
    for name in usual:
        texts = [json.dumps(line | ({name: "here"} if name in line else {})).replace('"here"', value) for line in lines]
        path.write_text("\n".join(texts) + "\n")
        diagnosis = diagnose(folder)
        assert len(diagnosis.checked) + len(diagnosis.skipped) >= len(CHECKS[objective]) - 2, (name, diagnosis.skipped)
        main(DoctorOptions(run=folder))
        said = capsys.readouterr().out.lower()
        assert "nan" not in said.replace("dominan", "") and "inf" not in said


def test_a_log_that_is_a_pipe_is_refused_instead_of_waited_for(write: Write) -> None:
    folder = write()
    (folder / "metrics.jsonl").unlink()
    os.mkfifo(folder / "metrics.jsonl")
    for read in (diagnose, read_history):
        with pytest.raises(
            ConfigError, match=f"run: {folder}/metrics.jsonl is a pipe, a socket or a device; give a file"
        ):
            read(folder)


def test_a_folder_without_records_is_a_user_error(write: Write, tmp_path: Path) -> None:
    (write() / "metrics.jsonl").unlink()
    with pytest.raises(ConfigError, match="no step is logged yet"):
        Symptoms(tmp_path / "run")
