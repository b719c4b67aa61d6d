"""Claims about the structure of the sources, which are read without importing them."""

import ast
import re
import sys
from configparser import ConfigParser
from functools import cache
from pathlib import Path

import pytest

from pretrain.huggingface.forms import MODEL_FILE, MODERN_FILE
from tests.conftest import REPOSITORY, modules

PACKAGES = ("electra_sampler", "data_prep", "pretrain", "finetune", "samplers")
# Rooms from the ground up: each may import itself and those before it. A package's own modules are its commands.
ROOMS = (
    *("electra_sampler/foundation", "electra_sampler", "data_prep/curation", "data_prep"),
    *("pretrain/model", "pretrain/model/kernels", "pretrain/data", "pretrain/method", "pretrain/job"),
    *("pretrain/engine", "pretrain/config", "pretrain/presets", "pretrain/huggingface", "pretrain/runs"),
    *("pretrain/planning", "pretrain/training", "pretrain/analysis"),
    "pretrain",
    *("finetune/config", "finetune/presets", "finetune/running"),
    *("finetune/likelihood", "finetune/scoring"),
    *(
        "finetune/minimal_pairs",
        "finetune/glue",
        "finetune/squad",
        "finetune/tagging",
        "finetune/reporting",
    ),
    "finetune",
    "electra_sampler/quickstart",
    "samplers",
)
# Rooms below that a room, or every room of a package, must still not import.
FORBIDDEN = {
    "pretrain/job": ("pretrain/model", "pretrain/data", "pretrain/method"),
    "pretrain/engine": ("pretrain/data", "pretrain/method"),
    "finetune": ("pretrain/method", "data_prep"),
    "finetune/squad": ("finetune/glue",),
    "finetune/tagging": ("finetune/glue", "finetune/squad"),
}


@cache
def imported(module: Path) -> list[str]:
    """Dotted names of all imports in a module, at any depth; of model code, without the other file of a folder."""
    names = []
    for node in ast.walk(ast.parse((REPOSITORY / module).read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not {module.name, f"{node.module}.py"} <= {MODEL_FILE, MODERN_FILE}:
            pytest.fail(f"{module}:{node.lineno}: a relative import; name the package")
    return names


def imported_packages(module: Path) -> set[str]:
    return {name.split(".")[0] for name in imported(module)}


def room_of(name: str) -> str | None:
    """The room of a module, or of a definition in it, by dotted name; None outside the project."""
    parts = name.split(".")
    return next((room for room in ("/".join(parts[:3]), "/".join(parts[:2]), parts[0]) if room in ROOMS), None)


def own_modules(room: str) -> list[Path]:
    return [module for module in modules(*PACKAGES) if room_of(".".join(module.with_suffix("").parts)) == room]


@cache
def rooms_imported(room: str) -> dict[str, Path]:
    """The other rooms that a room imports, each with one module that imports it."""
    found = {room_of(name): module for module in own_modules(room) for name in imported(module)}
    return {other: module for other, module in found.items() if other not in (None, room)}


def test_every_folder_is_a_room() -> None:
    folders = {module.parent.as_posix() for module in modules(*PACKAGES)}
    assert folders == {room for room in ROOMS if (REPOSITORY / room).is_dir()}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_rooms_below_it(room: str) -> None:
    """There is one order of all rooms, so imports have no cycles."""
    forbidden = {*FORBIDDEN.get(room, ()), *FORBIDDEN.get(room.split("/")[0], ())}
    below = set(ROOMS[: ROOMS.index(room)]) - forbidden
    assert not {other: str(module) for other, module in rooms_imported(room).items() if other not in below}


def test_every_requirement_is_imported_by_some_module() -> None:
    """TensorBoard by PyTorch's writer."""
    setup = ConfigParser(interpolation=None)
    setup.read(REPOSITORY / "setup.cfg")
    required = [re.findall(r"[\w-]+", line)[0] for line in setup["options"]["install_requires"].split("\n") if line]
    names = {"scikit-learn": "sklearn", "megatron-core": "megatron", "tensorboard": "torch.utils.tensorboard"}
    used = {name for module in modules(*PACKAGES) for name in imported(module)}
    wanted = [names.get(name, name) for name in required]
    assert len(wanted) > 20
    assert not [name for name in wanted if not any(f"{one}.".startswith(f"{name}.") for one in used)]


def test_nothing_imports_the_tests() -> None:
    assert not [str(module) for module in modules(*PACKAGES, "bench") if "tests" in imported_packages(module)]


def test_the_model_imports_only_the_foundation_and_torch() -> None:
    """Besides Python's own modules; its configuration also pydantic, kernels also numpy and triton."""
    allowed = {"electra_sampler", "pretrain", "torch", *sys.stdlib_module_names}
    for room, more in (("pretrain/model", {"pydantic"}), ("pretrain/model/kernels", {"numpy", "triton"})):
        assert not rooms_imported(room).keys() - {"electra_sampler/foundation", "pretrain/model"}
        packages = {package for module in own_modules(room) for package in imported_packages(module)}
        assert not packages - allowed - more


def test_operations_of_the_model_are_called_through_their_module() -> None:
    """A name imported from the module would remain the plain operation when a faster one replaces it."""
    taken = {module: set(imported(module)) for module in modules(*PACKAGES, "bench")}
    assert not [str(module) for module, names in taken.items() if any("pretrain.model.ops." in name for name in names)]


def test_every_dense_layer_and_layer_norm_is_from_ops() -> None:
    """Even in the heads of tasks: `nn.Linear` would not be replaced by the faster operations.

    The model code that an export carries is for machines without this project.
    """
    built = re.compile(r"\bnn\.(?:Linear|LayerNorm)\(")
    found = {str(module) for module in modules(*PACKAGES) if built.search((REPOSITORY / module).read_text())}
    assert found == {f"pretrain/huggingface/{file}" for file in (MODEL_FILE, MODERN_FILE)}


def test_only_the_engine_imports_deepspeed() -> None:
    """Besides the stand-in for a GPU."""
    users = {module.as_posix() for module in modules(*PACKAGES, "bench") if "deepspeed" in imported_packages(module)}
    assert users == {"pretrain/engine/zero.py", "pretrain/engine/deepspeed_patches.py", "bench/gpu/declared.py"}


def test_the_job_never_uses_torch_nn() -> None:
    uses = re.compile(r"\btorch\.nn\b|\bfrom torch import .*\bnn\b")
    assert not [str(module) for module in own_modules("pretrain/job") if uses.search((REPOSITORY / module).read_text())]


def test_the_house_is_drawn_as_it_is() -> None:
    """docs/architecture.md lists every room from the ground up with its imports; foundation is allowed everywhere."""
    page = (REPOSITORY / "docs/architecture.md").read_text()
    rows = re.findall(r"^\| ([\w/]+)(?:\.py)? \| .+ \| ?(.*?) ?\|$", page, re.MULTILINE)
    drawn = {room: imports for room, imports in rows if room in ROOMS}
    assert tuple(drawn) == ROOMS
    for room, imports in drawn.items():
        package = room.split("/")[0]
        named = [
            name if name in ROOMS else f"{package}/{name}" for name in imports.replace(".py", "").split(", ") if name
        ]
        assert named == [
            other for other in ROOMS if other in rooms_imported(room) and other != "electra_sampler/foundation"
        ], room


def test_no_condition_tells_kinds_of_model_apart() -> None:
    """They are looked up: a third is one module, one `Parts` and one form; a preset has a model of its kind anyway."""
    kinds = {"EncoderConfig", "ModernConfig", "ElectraModelConfig", "ModernModelConfig"}
    forks = []
    for module in modules(*PACKAGES):
        for node in ast.walk(ast.parse((REPOSITORY / module).read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
                named = {getattr(one, "id", "") for one in ast.walk(node.args[1])} & kinds
            elif isinstance(node, ast.Compare):
                names = {getattr(one, "attr", getattr(one, "value", "")) for one in ast.walk(node)}
                named = {name for name in names if name in ("model_type", "backbone")}
            else:
                continue
            forks += [f"{module}:{node.lineno}"] if named else []
    assert forks == []


def test_every_room_has_tests_and_every_folder_of_tests_a_room() -> None:
    tested = {path.parent.relative_to("tests").as_posix() for path in modules("tests") if path.name.startswith("test_")}
    rooms = {room for room in ROOMS if (REPOSITORY / room).is_dir()}
    assert rooms == {folder for folder in tested if folder.split("/")[0] in PACKAGES}


def test_each_test_file_is_beside_its_module() -> None:
    """The folders that mirror no package each have one rule, in their `__init__`."""
    files = [file for file in modules("tests") if file.name.startswith("test_") and file.parts[1] in PACKAGES]
    tested = {file: Path(*file.parts[1:-1], file.name.removeprefix("test_")) for file in files}
    assert not [str(file) for file, module in tested.items() if not (REPOSITORY / module).is_file()]
    assert not [str(module) for module in modules("tests") if any(".test_" in name for name in imported(module))]


def test_no_module_shadows_the_standard_library() -> None:
    assert not [str(module) for module in modules(*PACKAGES) if module.stem in sys.stdlib_module_names]
