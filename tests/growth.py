"""What a user or reader has to know, counted: `python -m tests.growth` lists it and writes `growth.txt`.

The test fails when the list or a package grows. Whoever adds a line says in the commit what it replaces, or who asked.
"""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

from electra_sampler.commands import COMMANDS
from electra_sampler.foundation.command_line import parser_of
from electra_sampler.foundation.config import StrictConfig
from electra_sampler.foundation.settings import settings
from finetune.config import GlueConfig, SquadConfig, TaggingConfig
from pretrain.config import RunConfig
from pretrain.engine.deepspeed_keys import DeepSpeedConfig
from pretrain.method.registry import BUILT_IN
from pretrain.presets import PAPER, TINY, with_objective
from tests.conftest import REPOSITORY

FROZEN = Path(__file__).with_name("growth.txt")
PACKAGES = ("electra_sampler", "data_prep", "pretrain", "finetune", "samplers")
BESIDE = ("bench", "tests")


def concepts() -> Iterator[str]:
    """Yields one line per command, option, setting, objective, kind of file and page."""
    for name, (module, _) in COMMANDS.items():
        yield f"command {name}"
        main = importlib.import_module(module).main
        for action in parser_of(get_type_hints(main)["options"], None)._actions:
            yield f"option {name} {(action.option_strings or [action.dest])[-1]}"
    of_runs = (row[0] for name in PAPER for rows in settings(RunConfig, with_objective(TINY, name)) for row in rows)
    yield from sorted({f"setting {key}" for key in of_runs})
    yield from (f"setting {row[0]}" for rows in settings(DeepSpeedConfig, None, "deepspeed.") for row in rows)
    of_tasks: tuple[type[StrictConfig], ...] = (GlueConfig, SquadConfig, TaggingConfig)
    yield from sorted({f"setting of fine-tuning {key}" for config in of_tasks for key in config.model_fields})
    yield from (f"objective {name}" for name in BUILT_IN)
    pages = sorted(path.relative_to(REPOSITORY).as_posix() for path in REPOSITORY.glob("docs/**/*.md"))
    for page in (page for page in pages if page.startswith("docs/reference/")):
        blocks = re.findall(r"^```\n(.*?)^```", (REPOSITORY / page).read_text(), re.DOTALL | re.MULTILINE)
        files = (line.split()[0] for block in blocks for line in block.splitlines() if line.strip())
        yield from (f"file {name}" for name in files if re.fullmatch(r"[\w./*-]*[./][\w./*-]*", name))
    yield from (f"page {page}" for page in pages)


def statements(package: str) -> int:
    """Returns the number of statements in a package, without docstrings."""
    trees = (ast.parse(path.read_text()) for path in (REPOSITORY / package).rglob("*.py"))
    nodes = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.stmt))
    return sum(not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) for node in nodes)


def sizes() -> dict[str, int]:
    return {package: statements(package) for package in (*PACKAGES, *BESIDE)}


def main() -> None:
    listed = [*concepts()]
    FROZEN.write_text("\n".join([*listed, *(f"statements {name} {size}" for name, size in sizes().items())]) + "\n")
    for kind in ("command", "option", "setting", "setting of fine-tuning", "objective", "file", "page"):
        known = {line.rpartition(" ")[2] for line in listed if re.fullmatch(rf"{kind} \S+( \S+)?", line)}
        print(f"{kind:<24}{len(known):>7,}")
    for name, size in sizes().items():
        print(f"statements {name:<13}{size:>7,}")
    print(f"statements of packages  {sum(statements(package) for package in PACKAGES):>7,}")


if __name__ == "__main__":
    main()
