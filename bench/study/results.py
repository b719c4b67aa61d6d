"""The results of a study: `results.json`, small enough to commit, and beside it the examples that intervals come from.

`results.json` has the conditions, every finished cell and every interval that a report showed, so that it alone prints
the report again. `examples/CELL.npz` has a cell's values per example, as `MEASURE/COLUMN`, and stays on its machine.
"""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from pydantic import ValidationError

from bench.study.commands import cell_name
from bench.study.file import Conditions, Row, Study
from electra_sampler.foundation.config import ConfigError, StrictRecord
from electra_sampler.foundation.files import write_atomically

FILE_NAME = "results.json"
EXAMPLES = "examples"
MINUS = " minus "
"""Between the names of two rows, as the name of their difference."""

Columns = dict[str, np.ndarray]
"""Values per example, by column, behind a measure or a group of measures of a cell."""


def as_lines(value: Any, levels: int) -> str:
    """Returns a value as JSON, with a line for each entry of its outer objects."""
    if not levels or not isinstance(value, dict):
        return json.dumps(value, separators=(",", ":"))
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {as_lines(part, levels - 1)}" for key, part in value.items()) + "\n}"


class CellResult(StrictRecord):
    """One row of the study, trained with one seed."""

    row: Row
    seed: int
    commit: str | None
    """Git commit of the code that trained the run."""
    versions: dict[str, str]
    machine: str
    tokens: float
    """Word pieces trained on."""
    flops_per_token: float
    numbers: dict[str, float | None]
    """Each measure, and further numbers of the run, by name."""
    reference: str | None
    """Checksum of the reference's replacements that the cell was measured on; None if it detects none."""
    seconds: dict[str, float]
    """Wall time of each command."""


Cells = Mapping[tuple[str, int], CellResult]
"""Finished cells by row and seed."""


class Bounds(StrictRecord):
    """The ends of an interval over these seeds."""

    seeds: tuple[int, ...]
    low: float
    high: float


class ResultsFile(StrictRecord):
    """The content of `results.json`."""

    conditions: Conditions
    """Alike for all cells; a setting that was added to studies since has its default."""
    reference: Row | None
    """The row of the reference."""
    data_sha256: str
    """The shards' `content_sha256`."""
    cells: dict[str, CellResult]
    intervals: dict[str, dict[str, Bounds]]
    """By measure, then by row or `ROW minus ROW`."""


class Results:
    """The results of a study in one folder."""

    def __init__(self, folder: Path, study: Study) -> None:
        """Reads `results.json`, if there is one.

        Raises:
            ConfigError: it is damaged, or was made under other conditions than the study's.
        """
        self.study, self.examples, self.path = study, folder / EXAMPLES, folder / FILE_NAME
        self.file = ResultsFile(
            conditions=study.conditions(),
            reference=study.reference_row,
            data_sha256="",
            cells={},
            intervals={},
        )
        if self.path.is_file():
            try:
                self.file = ResultsFile.model_validate_json(self.path.read_bytes())
            except ValidationError as error:
                raise ConfigError(
                    f"results: {self.path} is damaged ({error.errors()[0]['msg']}); restore it, or name another folder"
                ) from None
        self.cells: Cells = {
            (row.name, seed): cell
            for seed in study.seeds
            for row in study.rows
            if (cell := self.file.cells.get(cell_name(row, seed)))
        }
        had = self.file.conditions
        other = [
            name for name in Conditions.model_fields if name != "probes" and getattr(had, name) != getattr(study, name)
        ]
        other += ["probes"] if any(probe not in study.probes for probe in had.probes) else []
        other += ["reference"] if self.file.reference != study.reference_row else []
        other += sorted({f"row {name!r}" for (name, _), cell in self.cells.items() if cell.row != study.row(name)})
        if other:
            raise ConfigError(
                f"results: {self.path} was made with another {', '.join(other)}; name another folder, or give the study"
                " the settings of its cells"
            )

    def add(self, cell: CellResult, examples: Mapping[str, Columns], data_sha256: str) -> None:
        """Writes a cell and its examples. Intervals of a cell that it replaces are dropped."""
        name = cell_name(cell.row, cell.seed)
        self.examples.mkdir(parents=True, exist_ok=True)
        with io.BytesIO() as packed:
            columns: dict[str, Any] = {
                f"{group}/{column}": values.astype(np.float32)
                for group, part in examples.items()
                for column, values in part.items()
            }
            np.savez_compressed(packed, **columns)
            write_atomically(self.examples / f"{name}.npz", packed.getvalue())
        intervals = {
            measure: {
                rows: bounds
                for rows, bounds in part.items()
                if cell.seed not in bounds.seeds or cell.row.name not in rows.split(MINUS)
            }
            for measure, part in self.file.intervals.items()
        }
        changes = {"data_sha256": data_sha256, "cells": self.file.cells | {name: cell}, "intervals": intervals}
        self.file = self.file.model_copy(update=changes | {"conditions": self.study.conditions()})
        self.write()

    def write(self) -> None:
        """Writes `results.json`, a cell a line."""
        write_atomically(self.path, f"{as_lines(self.file.model_dump(mode='json'), 2)}\n".encode())

    def columns(self, row: str, seed: int, *groups: str) -> Columns:
        """Returns the values per example of the first of these groups that the cell has; empty if they are elsewhere.

        Raises:
            ConfigError: the file of examples is damaged.
        """
        path = self.examples / f"{cell_name(self.study.row(row), seed)}.npz"
        if not path.is_file():
            return {}
        try:
            with np.load(path) as file:
                names = [name.rpartition("/") for name in file.files]
                found = next((group for group in groups if group in {name[0] for name in names}), None)
                return {name[2]: file["".join(name)].astype(np.float64) for name in names if name[0] == found}
        except (OSError, ValueError, BadZipFile):
            raise ConfigError(f"results: {path} is damaged; remove it to report stored intervals") from None
