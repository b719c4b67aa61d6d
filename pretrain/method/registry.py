"""The objectives by name: the paper's four, and samplers in other files.

Your own sampler is a class in any file: `--objective FILE.py:CLASS` or `--objective package.module:CLASS`. Only a
file named so on the command line is ever run. Its run records the SHA-256 of the file and of those that it imports, and
keeps a copy, which is not run.
"""

import ast
import hashlib
import importlib.util
import inspect
import sys
import traceback
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import AfterValidator

from electra_sampler.foundation.config import StrictConfig, one_of, shown
from electra_sampler.foundation.files import read_file

if TYPE_CHECKING:
    from pretrain.method.objective import Objective

BUILT_IN = {
    "hp_loss": "pretrain.method.hardness_prediction:HPLoss",
    "hp_dist": "pretrain.method.hardness_prediction:HPDist",
    "electra": "pretrain.method.electra:Electra",
    "mlm": "pretrain.method.mlm:MaskedLM",
}
"""Class of each of the paper's objectives, imported only on use, so that `--help` needs the names but not torch."""


SHARED = {*sys.stdlib_module_names, "electra_sampler", "data_prep", "pretrain", "finetune"}
"""Modules that are not a sampler's own, besides installed ones: Python's and this project's."""


class Origin(StrictConfig):
    """Where the class of a sampler comes from."""

    name: str
    objective: str
    """The option's value: FILE.py:CLASS or package.module:CLASS."""
    sha256: str
    """Checksum of `LoadedSampler.source`."""

    def require_loaded(self) -> None:
        """Refuses the sampler of a run unless the command line names the very file that the run was started with.

        Raises:
            ValueError: it names no file, or a different one.
        """
        if self.name not in LOADED:
            raise ValueError(
                f"objective: the run trains with {self.objective}, and a file runs only if you name it; add"
                f" --objective {self.objective}, or, if the command has no such option, use an exported folder"
            )
        here = LOADED[self.name].origin
        if here.sha256 != self.sha256:
            raise ValueError(
                f"objective: the run was started with a file of SHA-256 {self.sha256}, but {here.objective} has"
                f" {here.sha256}, with the files that it imports; restore them from the copy in the run folder"
            )


class LoadedSampler(NamedTuple):
    """A sampler that this process has loaded."""

    kind: "type[Objective]"
    origin: Origin
    source: bytes
    """Content of its file, followed by that of the modules that it imports, each after its name."""


LOADED: dict[str, LoadedSampler] = {}
"""Samplers that the command line names, by name."""


def objective_names() -> list[str]:
    """Returns the names of all objectives that a run may have."""
    return [*BUILT_IN, *LOADED]


def objective_class(name: str) -> "type[Objective]":
    """Returns the class of a built-in objective or of a loaded sampler, by its name or as package.module:CLASS."""
    return LOADED[name].kind if name in LOADED else resolve_name(importable(BUILT_IN.get(name, name)))


def importable(name: str) -> str:
    """Returns the name by which a module or class is imported here: a wheel has `samplers` below electra_sampler."""
    shipped = name.startswith("samplers.") and importlib.util.find_spec("samplers") is None
    return f"electra_sampler.{name}" if shipped else name


def load_objective(given: str) -> str:
    """Returns the name of an objective given by name or as FILE.py:CLASS or package.module:CLASS, which is loaded.

    Raises:
        ConfigError: there is no such file.
        ValueError: there is no such objective, its file fails, or its class is not an objective with its own name.
    """
    if given in BUILT_IN:
        return given
    place, _, class_name = given.rpartition(":")
    if not place:
        raise ValueError(
            f"got {shown(given)}, {one_of(given, BUILT_IN)}, or a sampler of your own as FILE.py:CLASS or"
            " package.module:CLASS"
        )
    from pretrain.method.objective import Cost, Objective, ObjectiveConfig  # imports torch

    source = read_file(Path(place), "objective", "a file of Python") if place.endswith(".py") else b""
    try:
        if place.endswith(".py"):
            module = _run_file(Path(place), source)
        else:
            place = importable(place)
            module = importlib.import_module(place)
            source = Path(inspect.getfile(module)).read_bytes()
        kind: Any = getattr(module, class_name, None)
        config: Any = getattr(kind, "Config", None)
        fits = (
            (isinstance(kind, type) and issubclass(kind, Objective) and not inspect.isabstract(kind))
            and (isinstance(config, type) and issubclass(config, ObjectiveConfig))
            and not any(field.is_required() for field in config.model_fields.values())
            and isinstance(config.from_values({}).cost, Cost)
        )
        source += b"".join(
            f"\n# {name}\n".encode() + content
            for name, content in own_imports(source, module.__package__ or "", {}).items()
        )
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == place]
        where = f"line {lines[-1]} of {shown(place)}" if lines else shown(place)
        why = shown(f"{type(error).__name__}: {error}")[1:-1]
        raise ValueError(f"got {shown(given)}, but {where} fails: {why}; fix it, or name another sampler") from None
    if not fits or (name := config.model_fields["name"].default) in BUILT_IN:
        raise ValueError(
            f"got {shown(given)}, expected a class derived from pretrain.method.electra.Sampler or another objective,"
            " whose Config, derived from its parent's, has a default for every setting, a cost of type Cost, and"
            f' `name: Literal["..."] = "..."` with a name other than {", ".join(BUILT_IN)}'
        )
    LOADED[name] = LoadedSampler(
        kind, Origin(name=name, objective=given, sha256=hashlib.sha256(source).hexdigest()), source
    )
    return name


def own_imports(source: bytes, package: str, found: dict[str, bytes]) -> dict[str, bytes]:
    """Returns `found` with the content, by name, of each module that a file of this package imports, and of those that
    they import in turn; leaves out modules that are installed or `SHARED`.
    """
    for node in ast.walk(ast.parse(source)):
        for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            place = "." * getattr(node, "level", 0) + (getattr(node, "module", "") or "")
            with suppress(ImportError, ValueError):  # an attribute of a module, or a module that does not exist
                whole = f"{importlib.util.resolve_name(place, package)}.{alias.name}".strip(".")
                for name in accumulate(whole.split("."), "{}.{}".format):
                    spec = None if name.partition(".")[0] in SHARED else importlib.util.find_spec(name)
                    if spec is None or {"site-packages", "dist-packages"} & {*Path(spec.origin or "").parts}:
                        break
                    if name not in found and str(spec.origin).endswith(".py"):
                        found[name] = Path(str(spec.origin)).read_bytes()
                        own_imports(found[name], spec.parent or "", found)
    return found


def _run_file(path: Path, source: bytes) -> ModuleType:
    """Runs a file that belongs to no package as a module with a unique name."""
    module = ModuleType(f"objective_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # where pydantic looks up the types in its annotations
    exec(compile(source, path, "exec"), vars(module))
    return module


GivenObjective = Annotated[str, AfterValidator(load_objective)]
"""An option's value that names an objective; validation loads it."""
