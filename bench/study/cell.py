"""A finished cell of a study, one row with one seed, as one small JSON: numbers, examples behind them, commands.

Examples are packed: `{"shape": ..., "type": ..., "data": base64 of the zlib-compressed array}`, with one byte per count
and two per sum over a sequence. From these, `effects.py` computes bootstraps without the run folders.
"""

import base64
import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError

from bench.study.commands import Commands, cell_name
from bench.study.file import Probe, Row, Study, blimp_measure
from bench.study.jobs import JobRecord, Jobs
from data_prep.manifest import load_manifest
from data_prep.shards import IndexedFile
from finetune.running.records import EXAMPLES, FILE_NAME, PREDICTIONS, read_records
from foundation.config import ConfigError, StrictRecord
from foundation.files import write_atomically
from foundation.machine import cores
from pretrain.analysis.analysis import SUMMED
from pretrain.training.estimates import flops_per_token
from pretrain.training.run_folder import STARTS, read_run

CROSSED = {"loss": "discriminator_loss", "accuracy": "accuracy_masked", "AUC": "auc_all"}
"""Measures of one discriminator on one sampler's replacements, by their names in `crossing.json`."""


class PackedArray(StrictRecord):
    """A compressed array."""

    shape: tuple[int, ...]
    type: str
    data: str

    @classmethod
    def pack(cls, values: Any) -> "PackedArray":
        """Packs truth values and whole numbers below 256 exactly, others as fp16."""
        array = np.asarray(values)
        if array.dtype != bool:
            exact = array.astype(np.uint8)
            array = exact if np.array_equal(exact, array) else array.astype(np.float16)
        data = base64.b64encode(zlib.compress(array.tobytes(), 9)).decode()
        return cls(shape=array.shape, type=str(array.dtype), data=data)

    def unpack(self) -> np.ndarray:
        """Returns the array, numbers in fp64."""
        values = np.frombuffer(zlib.decompress(base64.b64decode(self.data)), self.type).reshape(self.shape)
        return values if self.type == "bool" else values.astype(np.float64)


class CellResult(StrictRecord):
    """All results of a cell: one row of the study, trained with one seed."""

    row: str
    seed: int
    conditions: dict[str, Any]
    """The study's settings that determine the numbers; a report requires them of all cells alike."""
    data_sha256: str
    """The shards' `content_sha256`: equal for all cells of a study."""
    commit: str | None
    """Git commit of the code that trained the run."""
    versions: dict[str, str]
    machine: str
    tokens: float
    """Word pieces trained on."""
    flops_per_token: float
    numbers: dict[str, float | None]
    """Each measure, and further numbers of the run, by name."""
    examples: dict[str, dict[str, PackedArray]]
    """Values per example, by column, for each measure or group of measures."""
    jobs: tuple[JobRecord, ...]


def conditions(study: Study, row: Row) -> dict[str, Any]:
    """Returns the study's settings that determine the numbers of a cell."""
    whole = study.model_dump(
        mode="json", exclude={"title", "rows", "seeds", "measures", "predictions", "gates", "baseline"}
    )
    return whole | {
        "row": row.model_dump(mode="json"),
        "reference": study.reference.model_dump() | {"row": study.row(study.reference.row).model_dump(mode="json")},
    }


def is_finished(cell: CellResult, study: Study) -> bool:
    """Returns whether a cell has the numbers of every probe; the study may have gained probes since the cell ran."""
    return all(probe.measure in cell.numbers for probe in study.probes)


def content_sha256(shards: Path) -> str:
    """Returns a checksum of a folder's tokenizer, shards and held-out shards; independent of the code's version."""
    manifests = load_manifest(shards), load_manifest(shards / "held_out")
    content = [(manifest.tokenizer_sha256, [shard.written for shard in manifest.shards]) for manifest in manifests]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def require_same_text(shards: Path, cells: Iterable[CellResult]) -> None:
    """Checks that finished cells were trained on these shards.

    Raises:
        ConfigError: a cell was trained on other shards.
    """
    expected = content_sha256(shards)
    if others := [f"{cell.row} with seed {cell.seed}" for cell in cells if cell.data_sha256 != expected]:
        raise ConfigError(
            f"input: {shards} differs from the shards of finished cells, such as {others[0]}; build it from their text"
            " with the version that built theirs, or name another folder of results"
        )


def measure(output: Path, commands: Commands, jobs: Jobs, study: Study, row: Row, seed: int) -> CellResult:
    """Gathers the result of a cell, one row with one seed, from what its finished commands wrote."""
    name = cell_name(row, seed)
    run = output / "runs" / name
    description, manifest = read_run(run), load_manifest(output / "shards")
    config = description.run
    numbers, examples = crossed_numbers(output, commands.reference, study.reference.replacements, name)
    numbers |= run_numbers(json.loads((run / "evaluation/metrics.json").read_text()))
    numbers["unigram entropy"] = unigram_entropy(output / "shards/held_out")
    if study.blimp:
        for measure, of_fields, columns in blimp_numbers(output / "blimp" / name):
            numbers |= of_fields
            examples[measure] = columns
    for probe in study.probes:
        numbers[probe.measure], examples[probe.measure] = probe_numbers(output / "probes" / name / probe.folder, probe)
    return CellResult(
        row=row.name,
        seed=seed,
        conditions=conditions(study, row),
        data_sha256=content_sha256(output / "shards"),
        commit=json.loads((run / STARTS).read_text().splitlines()[-1])["code"],
        versions=description.versions,
        machine=f"{cores()} cores, {torch.cuda.get_device_name() if torch.cuda.is_available() else 'no GPU'}",
        tokens=config.optim.steps * config.batch_size * manifest.totals.tokens / manifest.totals.sequences,
        flops_per_token=flops_per_token(
            config.model, config.objective, description.vocab_size, description.seq_length, config.mask_rate
        ),
        numbers=numbers,
        examples=examples,
        jobs=tuple(commands.without_paths(record) for job in commands.cell(row, seed) if (record := jobs.record(job))),
    )


def crossed_numbers(
    output: Path, reference: str, replacements: str, name: str
) -> tuple[dict[str, float | None], dict[str, dict[str, PackedArray]]]:
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
    examples = {}
    for place, wanted in places.items():
        found = [tuple(entry[key] for key in ("discriminator", "sampler", "distribution")) for entry in entries]
        number = found.index(wanted)
        for measure, key in CROSSED.items():
            value = entries[number][key]
            numbers[f"{place} {measure}"] = value and value[0]
        examples[place] = {
            part: PackedArray.pack(sums_S) for part, sums_S in zip(SUMMED, sums_ECS[number], strict=True)
        }
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


def blimp_numbers(folder: Path) -> Iterator[tuple[str, dict[str, float | None], dict[str, PackedArray]]]:
    """Yields for each kind of score the name of its measure, the percentage of minimal pairs that it gets right,
    overall and by field, and the result of each pair.
    """
    with np.load(folder / "blimp.npz") as file:
        right_SP = 2 * file["right"]
    models = json.loads((folder / "blimp.json").read_text())["models"]
    for (label, scores), right_P in zip(models.items(), right_SP, strict=True):
        measure = blimp_measure(label.rpartition(" ")[2])
        numbers = {f"{measure}, {field}": value[0] for field, value in scores["field"].items()}
        yield measure, {measure: scores["all"]["all"][0], **numbers}, {"right": PackedArray.pack(right_P)}


def probe_numbers(folder: Path, probe: Probe) -> tuple[float, dict[str, PackedArray]]:
    """Returns the mean of the probe's metric over its seeds, in percent, and every seed's answer to each example."""
    records = {record.run.seed: record for record in read_records(folder / FILE_NAME)}
    found = [records[seed] for seed in probe.seeds]
    files = (folder / PREDICTIONS / record.run.folder_name() / EXAMPLES for record in found)
    answers = [json.loads(path.read_text())["dev"] for path in files]
    columns = {name: PackedArray.pack([answer[name] for answer in answers]) for name in answers[0]}
    return 100 * float(np.mean([record.last["dev"][probe.metric] for record in found])), columns


def write_cell(results: Path, study: Study, result: CellResult) -> None:
    """Writes a cell's JSON."""
    results.mkdir(parents=True, exist_ok=True)
    path = results / f"{cell_name(study.row(result.row), result.seed)}.json"
    write_atomically(path, (json.dumps(result.model_dump(mode="json"), indent=1) + "\n").encode())


def read_cells(results: Path, study: Study) -> dict[tuple[str, int], CellResult]:
    """Reads the finished cells of a study, by row and seed.

    Raises:
        ConfigError: a file is damaged, a cell's settings differ from the study's, or cells were trained on different
            text.
    """
    found = {}
    for seed in study.seeds:
        for row in study.rows:
            path = results / f"{cell_name(row, seed)}.json"
            if not path.is_file():
                continue
            try:
                cell = CellResult.model_validate_json(path.read_bytes())
            except ValidationError as error:
                raise ConfigError(f"results: {path} is damaged; remove it and rerun: {error.errors()[0]}") from None
            wanted, had = conditions(study, row), cell.conditions
            other = [key for key, value in wanted.items() if key != "probes" and had.get(key) != value]
            other += ["probes"] if any(probe not in wanted["probes"] for probe in had["probes"]) else []
            if other:
                raise ConfigError(
                    f"results: {path} was made with another {', '.join(other)}; name another folder, or remove it and"
                    " rerun the command"
                )
            found[row.name, seed] = cell
    data = {cell.data_sha256: cell_name(study.row(cell.row), cell.seed) for cell in found.values()}
    if len(data) > 1:
        raise ConfigError(
            f"results: cells in {results} were trained on different shards ({' and '.join(data.values())});"
            " keep cells that were trained on the same text"
        )
    return found
