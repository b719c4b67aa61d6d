"""Claims about the shape of the source tree, read from the sources without importing them."""

import ast
import re
import sys

import pytest

from tests.conftest import REPOSITORY

# Each package may import itself and those after it.
PACKAGES = ("quickstart", "finetune", "pretrain", "data_prep")
PROLOGUE = """
if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])
"""


NAMED_FILE = re.compile(
    r"\b(?:(?:data_prep|pretrain|finetune|quickstart|ds_configs|hostfiles|cluster|docs|tests)/[\w./]*\w)"
)


def modules(*packages):
    paths = (path for package in packages for path in (REPOSITORY / package).rglob("*.py"))
    return sorted(path.relative_to(REPOSITORY) for path in paths)


def imported_packages(module):
    for node in ast.walk(ast.parse((REPOSITORY / module).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module.split(".")[0]
        elif isinstance(node, ast.ImportFrom):
            pytest.fail(f"{module}:{node.lineno}: a relative import; name the package")


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_run_one_way(package):
    forbidden = PACKAGES[: PACKAGES.index(package)]
    wrong = [
        f"{module} imports {name}"
        for module in modules(package)
        for name in imported_packages(module)
        if name in forbidden or name == "tests"
    ]
    assert not wrong


def test_only_the_engine_imports_deepspeed():
    users = {module.as_posix() for module in modules(*PACKAGES, "bench") if "deepspeed" in imported_packages(module)}
    assert users <= {"pretrain/engine.py"}


def test_every_module_has_its_test_file():
    wanted = {
        module: REPOSITORY / "tests" / module.with_name(f"test_{module.name}")
        for module in modules(*PACKAGES)
        if module.name != "__init__.py"
    }
    assert not [str(module) for module, test in wanted.items() if not test.is_file()]


def test_every_test_file_has_its_module():
    tests = [path.relative_to("tests") for path in modules("tests") if path.name.startswith("test_")]
    mirrored = [path for path in tests if path.parts[0] in PACKAGES]
    assert not [str(path) for path in mirrored if not (REPOSITORY / path.with_name(path.name[5:])).is_file()]


def test_no_module_shadows_the_standard_library():
    assert not [str(module) for module in modules(*PACKAGES) if module.stem in sys.stdlib_module_names]


def test_every_script_imports_from_the_repository_and_not_from_its_own_folder():
    scripts = [module for module in modules(*PACKAGES) if '__name__ == "__main__"' in (REPOSITORY / module).read_text()]
    assert scripts
    assert not [str(module) for module in scripts if PROLOGUE not in (REPOSITORY / module).read_text()]


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_every_file_that_a_page_names_exists(page):
    named = set(NAMED_FILE.findall((REPOSITORY / page).read_text())) - {"ds_configs/NAME.json", "hostfiles/NAME"}
    assert named
    assert not [name for name in sorted(named) if not (REPOSITORY / name).exists()]
