"""The measures of a finished cell, one row with one seed: numbers, and the values per example behind them."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.study.commands import Commands, cell_name
from bench.study.file import Probe, Row, Study, blimp_measure
from bench.study.jobs import Jobs
from bench.study.results import CellResult, Columns, Results
from data_prep.manifest import load_manifest
from data_prep.shards import IndexedFile
from electra_sampler.foundation.config import ConfigError
from electra_sampler.foundation.machine import cores
from finetune.running.records import EXAMPLES, FILE_NAME, PREDICTIONS, read_records
from pretrain.analysis.analysis import SUMMED
from pretrain.planning.estimates import flops_per_token
from pretrain.runs.folder import STARTS, read_run

CROSSED = {"loss": "discriminator_loss", "accuracy": "accuracy_masked", "AUC": "auc_all"}
"""Measures of one discriminator on one sampler's replacements, by their names in `crossing.json`."""

FAR = 2
"""Least number of phrases between the words of a pair that the measures of agreement count."""


def is_finished(cell: CellResult, study: Study) -> bool:
    """Returns whether a cell has the numbers of every probe; the study may have gained probes since the cell ran."""
    return all(probe.measure in cell.numbers for probe in study.probes)


def checksum(replaced_S: np.ndarray) -> str:
    """Returns a checksum of how many tokens of each sequence are replaced: equal for equal replacements."""
    return hashlib.sha256(replaced_S.astype(np.float32).tobytes()).hexdigest()[:8]


def content_sha256(shards: Path) -> str:
    """Returns a checksum of a folder's tokenizer, shards and held-out shards; independent of the code's version."""
    manifests = load_manifest(shards), load_manifest(shards / "held_out")
    content = [(manifest.tokenizer_sha256, [shard.written for shard in manifest.shards]) for manifest in manifests]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def require_same_text(shards: Path, results: Results) -> None:
    """Checks that finished cells were trained on these shards.

    Raises:
        ConfigError: they were trained on other shards.
    """
    if results.file.cells and results.file.data_sha256 != content_sha256(shards):
        raise ConfigError(
            f"input: {shards} differs from the shards of the cells in {results.path}; build it from their text with"
            " the version that built theirs, or name another folder of results"
        )


def measure(
    output: Path, commands: Commands, jobs: Jobs, study: Study, row: Row, seed: int
) -> tuple[CellResult, dict[str, Columns]]:
    """Gathers the result of a cell, one row with one seed, and its examples from what its finished commands wrote."""
    name = cell_name(row, seed)
    run = output / "runs" / name
    description, manifest = read_run(run), load_manifest(output / "shards")
    config = description.run
    numbers = run_numbers(json.loads((run / "evaluation/metrics.json").read_text()))
    examples: dict[str, Columns] = {}
    if study.reference and commands.reference:
        crossed, examples = crossed_numbers(output, commands.reference, study.reference.replacements, name)
        numbers |= crossed
    if study.language:
        agreed, columns_of = language_numbers(json.loads((run / "language.json").read_text()))
        numbers, examples = numbers | agreed, examples | columns_of
    numbers["unigram entropy"] = unigram_entropy(output / "shards/held_out")
    if study.blimp:
        for measure, of_fields, columns in blimp_numbers(output / "blimp" / name):
            numbers |= of_fields
            examples[measure] = columns
    for probe in study.probes:
        numbers[probe.measure], examples[probe.measure] = probe_numbers(output / "probes" / name / probe.folder, probe)
    cell = CellResult(
        row=row,
        seed=seed,
        commit=json.loads((run / STARTS).read_text().splitlines()[-1])["code"],
        versions=description.versions,
        machine=f"{cores()} cores, {torch.cuda.get_device_name() if torch.cuda.is_available() else 'no GPU'}",
        tokens=config.optim.steps * config.batch_size * manifest.totals.tokens / manifest.totals.sequences,
        flops_per_token=flops_per_token(
            config.model, config.objective, description.vocab_size, description.seq_length, config.mask_rate
        ),
        numbers=numbers,
        reference=checksum(examples["frozen"]["replaced"]) if "frozen" in examples else None,
        seconds={
            job.name.removesuffix(f"-{name}"): record.seconds
            for job in commands.cell(row, seed)
            if (record := jobs.record(job))
        },
    )
    return cell, examples


def crossed_numbers(
    output: Path, reference: str, replacements: str, name: str
) -> tuple[dict[str, float | None], dict[str, Columns]]:
    """Returns the detection metrics of this run crossed with the reference run, and the sums behind them by sequence.

    `difficulty`: the reference's discriminator on this run's replacements. `frozen`: this run's discriminator on the
    reference's replacements. `own`: this run's discriminator on its own replacements.
    """
    folder = output / "evaluation" / name
    entries = json.loads((folder / "crossing.json").read_text())["entries"]
    with np.load(folder / "crossing.npz") as file:
        sums_ECS = file["sums"]
    own, other = str(output / "runs" / name), str(output / "runs" / reference)
    if not any(entry["sampler"] == own for entry in entries):  # a masked language model
        return {}, {}
    learned = [entry["distribution"] for entry in entries if entry["sampler"] == own][-1]
    places = {"difficulty": (other, own, learned), "frozen": (own, other, replacements), "own": (own, own, learned)}
    numbers: dict[str, float | None] = {}
    examples: dict[str, Columns] = {}
    for place, wanted in places.items():
        found = [tuple(entry[key] for key in ("discriminator", "sampler", "distribution")) for entry in entries]
        number = found.index(wanted)
        for measure, key in CROSSED.items():
            value = entries[number][key]
            numbers[f"{place} {measure}"] = value and value[0]
        examples[place] = dict(zip(SUMMED, sums_ECS[number], strict=True))
        share = entries[number]["loss_over_entropy"]
        numbers[f"{place} loss over entropy"] = share and share[0]
        if place == "own":
            masked, replaced = (sums_ECS[number, SUMMED.index(part)].sum() for part in ("masked", "replaced"))
            numbers["share of originals"] = float(1 - replaced / masked)
    return numbers, examples


def run_numbers(metrics: dict[str, Any]) -> dict[str, float | None]:
    """Returns the numbers of a run's own evaluation: of its generator, of the sampling distribution it trained on, and
    the correlation of the sampling head's estimate with the actual loss.
    """
    predicted = {"MLM loss": metrics["mlm_loss"], "MLM accuracy": metrics["mlm_accuracy"]}
    if not metrics.get("detection"):
        return predicted
    learned = [*metrics["detection"]][-1]
    intervals = {
        "own loss over entropy": metrics["detection"][learned].get("loss_over_entropy"),
        "entropy": metrics["entropy"][learned],
        "maximum above .9": metrics["max_probability"][learned][-1],
        "effective share": metrics["loss_estimate"][learned]["effective_share"],
        "variance of the estimate": metrics["loss_estimate"][learned]["variance"],
        "p_S minus p_G, accuracy": metrics.get("p_S_minus_p_G", {}).get("detection", {}).get("accuracy_masked"),
    }
    for name, value in metrics.get("oracle_distance", {}).items():
        intervals[f"KL to the oracle, {name}"] = value
    for group, value in metrics["estimate_quality"].get("pearson", {}).items():
        intervals[f"correlation of the estimate, {group}"] = value
    return predicted | {name: value and value[0] for name, value in intervals.items()}


def language_numbers(found: dict[str, Any]) -> tuple[dict[str, float | None], dict[str, Columns]]:
    """Returns the numbers of a run on the controlled language, and how far each pair of at least two phrases is right.

    Pairs are judged by the discriminator or, in a masked language model, by its generator.
    """
    checkpoints = {int(step): found["steps"][step] for step in sorted(found["steps"], key=int)}
    last, terms = [*checkpoints.values()][-1], np.array(found["terms"])
    kind = "discriminator" if "discriminator" in last["right"] else "generator"
    far_P = np.array([int(term.split(", ")[1].split()[0]) >= FAR for term in terms])
    right_CP = np.array([checkpoint["right"][kind] for checkpoint in checkpoints.values()])
    accuracy_C = 100 * right_CP[:, far_P].mean(1)
    numbers: dict[str, float | None] = {**last["exact"], "agreement": float(accuracy_C.mean())}
    numbers |= {"agreement at the end": float(accuracy_C[-1])}
    numbers |= {f"agreement, {term}": 100 * float(right_CP[-1, terms == term].mean()) for term in np.unique(terms)}
    for share in (75, 90):
        numbers[f"steps to {share}%"] = next(
            (step for step, accuracy in zip(checkpoints, accuracy_C, strict=True) if accuracy >= share), None
        )
    numbers["generator's agreement"] = 100 * float(np.array(last["right"]["generator"])[far_P].mean())
    right = {"agreement": right_CP[:, far_P].mean(0), "agreement at the end": right_CP[-1, far_P]}
    return numbers, {measure: {"right": 2 * right_P} for measure, right_P in right.items()}


def unigram_entropy(shards: Path) -> float:
    """Returns the unigram entropy of the tokens, special ones excluded, in nats: the loss of predicting frequencies."""
    manifest = load_manifest(shards)
    counts = np.zeros(manifest.vocab_size, np.int64)
    for shard in manifest.shards:
        counts += np.bincount(IndexedFile(shards / shard.name).data, minlength=manifest.vocab_size)
    special = manifest.special_tokens
    counts[[special.pad, special.cls, special.sep]] = 0
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())


def blimp_numbers(folder: Path) -> Iterator[tuple[str, dict[str, float | None], Columns]]:
    """Yields for each kind of score the name of its measure, the percentage of minimal pairs that it gets right,
    overall and by field, and the result of each pair.
    """
    with np.load(folder / "blimp.npz") as file:
        right_SP = 2 * file["right"]
    models = json.loads((folder / "blimp.json").read_text())["models"]
    for (label, scores), right_P in zip(models.items(), right_SP, strict=True):
        measure = blimp_measure(label.rpartition(" ")[2])
        numbers = {f"{measure}, {field}": value[0] for field, value in scores["field"].items()}
        yield measure, {measure: scores["all"]["all"][0], **numbers}, {"right": right_P}


def probe_numbers(folder: Path, probe: Probe) -> tuple[float, Columns]:
    """Returns the mean of the probe's metric over its seeds, in percent, and every seed's answer to each example."""
    records = {record.run.seed: record for record in read_records(folder / FILE_NAME)}
    found = [records[seed] for seed in probe.seeds]
    files = (folder / PREDICTIONS / record.run.folder_name() / EXAMPLES for record in found)
    answers = [json.loads(path.read_text())[probe.split] for path in files]
    columns = {name: np.array([answer[name] for answer in answers]) for name in answers[0]}
    return 100 * float(np.mean([record.last[probe.split][probe.metric] for record in found])), columns
