"""Claims about crossing runs: every discriminator on every sampler's replacements, on checkpoints loaded from disk."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from pretrain.analysis.analysis import SUMMED, analyze, detection, sequence_sums
from pretrain.analysis.crossing import COMPARED, Candidate, Entry, cross, crossing, tables
from pretrain.analysis.observation import observe
from pretrain.config import RunConfig
from pretrain.data.batches import Batch
from pretrain.engine.checkpoint import EngineState, save
from pretrain.engine.optim import OptimConfig
from pretrain.method.electra import Electra
from pretrain.runs.folder import RunDescription
from tests.pretrain.conftest import MASK, PAD, SMALL_MODEL, VOCABULARY

CPU = torch.device("cpu")
OPTIM = {"steps": 10, "warmup_steps": 1, "lr": 1e-3}


def candidate(name: str, model: Electra, batches: list[Batch], folder: Path, step: int = 10) -> Candidate:
    """Saves the model as the checkpoint of a run, and evaluates it."""
    description = RunDescription(
        precision="fp32",
        hardware="CPU with avx2",
        run=RunConfig(model=SMALL_MODEL, objective=model.objective, optim=OptimConfig.from_values(OPTIM), batch_size=1),
        data=("data",),
        data_sha256="",
        tokenizer_sha256="",
        seq_length=10,
        vocab_size=VOCABULARY,
        mask_token_id=MASK,
        pad_token_id=PAD,
    )
    weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    checkpoint = save(folder, step, EngineState(0, {}, weights, {}), {}, keep_last=1)
    observed = observe(model, batches, CPU)
    sums = {place: sequence_sums(seen.judgment) for place, seen in observed.under.items()}
    return Candidate(name, description, checkpoint, {}, observed.tokens, analyze(observed)["detection"], sums)


@pytest.fixture
def batches(batch: Batch) -> list[Batch]:
    """Eight batches of the same sequences with different draws."""
    torch.manual_seed(0)
    return [batch._replace(uniforms_BK=torch.rand_like(batch.uniforms_BK)) for _ in range(8)]


@pytest.fixture
def models(make_electra: Callable[..., Electra]) -> dict[str, Electra]:
    """A baseline, and a method with a different discriminator."""
    method = make_electra(name="hp_loss")
    torch.nn.init.normal_(method.discriminator_predictions.get_parameter("dense.weight"))
    return {"base": make_electra(name="electra"), "method": method}


@pytest.fixture
def entries(models: dict[str, Electra], batches: list[Batch], tmp_path: Path) -> list[Entry]:
    candidates = [candidate(name, model, batches, tmp_path / name) for name, model in models.items()]
    return list(cross(candidates, lambda: batches, CPU))


def test_every_discriminator_judges_every_samplers_replacements(entries: list[Entry]) -> None:
    sources = [("base", "p_G"), ("method", "p_G"), ("method", "p_S")]  # the baseline has no p_S
    assert [(entry.discriminator, entry.sampler, entry.distribution) for entry in entries] == [
        (name, *source) for name in ("base", "method") for source in sources
    ]


def test_the_diagonal_equals_the_runs_own_evaluations_and_the_rest_does_not(
    entries: list[Entry], models: dict[str, Electra], batches: list[Batch]
) -> None:
    replacements = {name: observe(model, batches, CPU) for name, model in models.items()}
    for entry in entries:
        right, losses = [], []
        for number, batch in enumerate(batches):
            tokens_BK = replacements[entry.sampler].tokens[entry.distribution][3 * number :][:3].long()
            with torch.no_grad():
                d_BL, replaced_BL = models[entry.discriminator].eval().discriminate(batch, tokens_BK)
            d, replaced = d_BL[batch.attention_mask_BL], replaced_BL[batch.attention_mask_BL]
            right.append(((d > 0) == replaced).double().mean().item())
            losses.append(torch.nn.functional.binary_cross_entropy_with_logits(d, replaced.float()).item())
        assert entry.found["accuracy_all"].value == pytest.approx(np.mean(right))
        assert entry.found["discriminator_loss"].value == pytest.approx(np.mean(losses), rel=1e-5)
        own = detection(replacements[entry.sampler].under[entry.distribution].judgment)
        assert entry.found["replaced_share"].value == own["replaced_share"].value


def test_a_difference_compares_two_discriminators_on_identical_replacements(entries: list[Entry]) -> None:
    crossed = json.loads(json.dumps(crossing(entries, 24)))
    found = {
        (part["discriminator"], part["sampler"], part["distribution"], part["step"]): part
        for part in crossed["entries"]
    }
    assert len(found) == 6 and len(crossed["differences"]) == 3
    for part in crossed["differences"]:
        assert (part["discriminator"], part["minus"], part["step"]) == ("method", "base", 10)
        where = (part["sampler"], part["distribution"], part["step"])
        a, b = (found[(name, *where)] for name in ("method", "base"))
        assert a["discriminator_entropy"] == b["discriminator_entropy"]
        for name in COMPARED:
            value, low, high = part[name]
            assert value == pytest.approx(a[name][0] - b[name][0])
            assert low <= value + 1e-9 and value - 1e-9 <= high


def test_a_single_run_is_its_own_diagonal(models: dict[str, Electra], batches: list[Batch], tmp_path: Path) -> None:
    alone = candidate("method", models["method"], batches, tmp_path)
    entries = list(cross([alone], lambda: pytest.fail("nothing is left to read"), CPU))
    assert [entry.distribution for entry in entries] == ["p_G", "p_S"]
    assert crossing(entries, 24)["differences"] == []
    assert "minus" not in tables(crossing(entries, 24))


def test_the_markdown_tables_have_every_entry_and_the_differences_from_the_first_run(entries: list[Entry]) -> None:
    lines = tables(crossing(entries, 24)).splitlines()
    assert lines[0].startswith("| discriminator | replacements | step |")
    rows = [line for line in lines if line.startswith("| base") or line.startswith("| method")]
    assert len(rows) == 6 + 3
    assert "minus base:" in lines
    value = next(entry for entry in entries if entry.distribution == "p_S").found["accuracy_masked"].value
    assert f"| base | p_S of method | 10 | {value:.4f} (" in "\n".join(rows)
    assert len({line.count("|") for line in lines[: lines.index("")]}) == 1


def test_all_entries_share_their_resamples_so_a_discriminators_difference_from_itself_is_zero(
    make_electra: Callable[..., Electra], batches: list[Batch], tmp_path: Path
) -> None:
    twins = [candidate(name, make_electra(name="hp_loss"), batches, tmp_path / name) for name in ("a", "b")]
    for part in crossing(list(cross(twins, lambda: batches, CPU)), 24)["differences"]:
        assert np.allclose([part[name] for name in COMPARED], 0)


def test_the_sums_of_all_sequences_give_the_metrics_of_each_entry(entries: list[Entry]) -> None:
    for entry in entries:
        of = dict(zip(SUMMED, entry.sums_CS.astype(np.float64).sum(1), strict=True))
        expected = {
            "accuracy_all": of["right"] / of["tokens"],
            "accuracy_masked": of["masked_right"] / of["masked"],
            "discriminator_loss": of["loss"] / of["tokens"],
            "auc_all": of["placed_replaced"] / of["replaced"],
        }
        assert {name: entry.found[name].value for name in expected} == pytest.approx(expected)
        assert of["placed_original"] / (of["tokens"] - of["replaced"]) == pytest.approx(expected["auc_all"])


def test_newest_checkpoints_of_different_steps_are_crossed_and_named_by_the_samplers_step(
    models: dict[str, Electra], batches: list[Batch], tmp_path: Path
) -> None:
    steps = {"base": 10, "method": 7}
    candidates = [candidate(name, models[name], batches, tmp_path / name, step) for name, step in steps.items()]
    assert [entry.step for entry in cross(candidates, lambda: batches, CPU)] == [10, 7, 7] * 2
