"""Claims about the pages: links lead somewhere, what a user is told to type is accepted, and no page is too long."""

import ast
import importlib
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from errno import ENOSPC
from functools import cache
from html.parser import HTMLParser
from itertools import takewhile
from pathlib import Path
from typing import get_type_hints

import pytest

from docs.make_reference import REFERENCE, pages
from electra_sampler.commands import COMMANDS
from electra_sampler.foundation.command_line import parser_of
from electra_sampler.quickstart.summary import show, table
from finetune.config import GlueOptions, SquadOptions
from finetune.presets import settings_for
from pretrain.config import RunConfig, with_overrides
from pretrain.engine.deepspeed_config import OVERRIDE, read
from pretrain.method.registry import load_objective
from pretrain.presets import PRESETS, with_objective
from tests.conftest import REPOSITORY

PAGES = [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md"), REPOSITORY / "ds_configs/README.md"]
OF_TODAY = [page for page in PAGES if page.name != "CHANGELOG.md"]
"""Pages that name only what is there."""
LONGEST, WIDEST = 250, 200
"""Lines of a page, and characters of a table's row."""
CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
TYPED = (
    r"\S*python3? deepspeed electra-sampler sbatch make \S*pip docker tensorboard hf aws export echo printf cat cp"
    r" mkdir touch \. --set"
)
"""First words of lines that a reader types."""
LINK = re.compile(r"\]\(([^)\s]+)\)")
OVERRIDES = re.compile(r"--set((?: [\w.]+=[^\s`]+)+)")
FOLDERS = "electra_sampler data_prep pretrain samplers finetune ds_configs hostfiles cluster bench docs tests"
NAMED_FILE = re.compile(rf"(?<![\w./-])(?:{FOLDERS.replace(' ', '|')})/[\w./]*\w(?![\w*])")
NAMED_OTHERWISE = {"ds_configs/NAME.json", "hostfiles/NAME", "bench/results/NAME"}
SCRIPTS = {module.replace(".", "/") + ".py": module for module, _ in COMMANDS.values()}


def name_of(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


every_page = pytest.mark.parametrize("page", sorted(PAGES), ids=name_of)


@every_page
def test_a_page_is_short_and_its_tables_are_narrow(page: Path) -> None:
    lines = page.read_text().splitlines()
    assert len(lines) <= LONGEST
    assert not [line for line in lines if line.startswith("|") and len(line) > WIDEST]


@every_page
def test_every_link_within_the_project_leads_somewhere(page: Path) -> None:
    for link in LINK.findall(CODE.sub("", page.read_text())):
        if not link.startswith(("https://", "http://")):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


def anchors(page: Path) -> set[str]:
    """Anchors of the page's headings, as GitHub and MkDocs make them."""
    headings = re.findall(r"^#+ (.+)$", CODE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", sorted(OF_TODAY), ids=name_of)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = set(NAMED_FILE.findall(page.read_text())) - NAMED_OTHERWISE
    assert not [name for name in sorted(named) if not (REPOSITORY / name).exists()]


def test_every_option_that_a_page_types_exists() -> None:
    typed = [(name_of(page), *command) for page in OF_TODAY for command in commands_of(page)]
    assert len(typed) > 20
    for page, module, options in typed:
        command = importlib.import_module(module)
        known = parser_of(get_type_hints(command.main)["options"], None)._option_string_actions
        assert not options - {*known}, f"{page}: {module}"


def commands_of(page: Path) -> Iterator[tuple[str, set[str]]]:
    """The commands in the page's code blocks: the module of each, and its options by name."""
    for block in CODE.findall(page.read_text()):
        for line in block.replace("\\\n", " ").splitlines():
            words = [word.strip("[]") for word in line.partition(" #")[0].split()]
            script = next((place for place, word in enumerate(words) if word in SCRIPTS), None)
            if script is not None:
                given = takewhile(lambda word: word not in ("--", "|", "&&"), words[script + 1 :])
                yield SCRIPTS[words[script]], {word.partition("=")[0] for word in given if word.startswith("--")}


def documented() -> Iterator[tuple[str, str, str]]:
    """The overrides of each `--set`, with each preset that they are for (the one named beside them, or all), and the
    objective named beside them, or ''.
    """
    for page in OF_TODAY:
        for line in page.read_text().replace("\\\n", " ").splitlines():
            named = re.findall(r"--preset (\w+)", line) or PRESETS
            objective = re.search(r"--objective ([\w.:]+)", line)
            if objective and ".py" in objective[1]:  # the reader's own file: tests/pretrain/method/test_registry.py
                continue
            given = [overrides.strip() for overrides in OVERRIDES.findall(line) if "KEY=VALUE" not in overrides]
            yield from ((preset, objective[1] if objective else "", each) for each in given for preset in named)


@pytest.mark.parametrize(("preset", "objective", "overrides"), sorted(set(documented())))
def test_overrides_on_a_page_are_valid(preset: str, objective: str, overrides: str) -> None:
    keys = {override.partition("=")[0] for override in overrides.split()}
    for options in (GlueOptions, SquadOptions):
        fields = options.settings_class.model_fields
        if keys <= fields.keys() - RunConfig.model_fields.keys():
            given = options.from_values({"model": "m", "set": overrides.split()}).overrides()
            assert settings_for(options.settings_class, "RTE", 256, 512, given)
            return
    of_deepspeed = [override for override in overrides.split() if override.startswith(OVERRIDE)]
    run = with_objective(PRESETS[preset], load_objective(objective)) if objective else PRESETS[preset]
    with_overrides(run, [other for other in overrides.split() if other not in of_deepspeed])
    read(Path("zero1_bf16"), of_deepspeed)


GUIDE = [REPOSITORY / "README.md", *sorted(REPOSITORY.glob("docs/guide/*.md"))]


@pytest.mark.parametrize("page", GUIDE, ids=name_of)
def test_a_block_without_a_language_holds_commands_and_one_of_text_what_the_code_prints(page: Path) -> None:
    assert not [line for line in lines_of("", page) if not re.match(f"(?:{TYPED.replace(' ', '|')}) ", line)]
    if page.name != "README.md":  # whose table has a test of its own
        assert not [line for line in lines_of("text", page) if not any(printed(line))]


def lines_of(language: str, page: Path) -> list[str]:
    """The lines of the page's blocks in this language, lines continued by a backslash as one."""
    blocks = [block for name, block in BLOCK.findall(page.read_text()) if name == language]
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if line]


def printed(line: str) -> Iterator[bool]:
    """For each string of the code, whether it prints this line, a third of which it must spell out."""
    for parts in strings():
        pattern = r"(?:\w+\.py: error: )?" + ".+".join(map(re.escape, parts))
        yield len("".join(parts)) * 3 >= len(line) and bool(re.fullmatch(pattern, line))


@cache
def strings() -> list[tuple[str, ...]]:
    """The strings of the code, each as its constant parts, between which it puts values."""
    found = set()
    for package in ("electra_sampler", "data_prep", "pretrain", "finetune"):
        for path in REPOSITORY.glob(f"{package}/**/*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    found.add(tuple(str(part.value) if isinstance(part, ast.Constant) else "" for part in node.values))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.add((node.value,))
    return sorted(found)


def test_every_failure_in_the_guide_is_named_by_words_of_its_message() -> None:
    headings = re.findall(r"^## (.*`.*)$", (REPOSITORY / "docs/guide/failures.md").read_text(), re.MULTILINE)
    quoted = [part.strip() for heading in headings for part in re.findall(r"`([^`]+)`", heading)]
    assert len(quoted) > 10
    everything = {os.strerror(ENOSPC), *(part for parts in strings() for part in parts)}
    for words in (words.strip() for message in quoted for words in re.split(r"\.\.\.|\d+", message) if words.strip()):
        assert any(words in part for part in everything), words


def test_the_readmes_table_is_as_the_quickstart_prints_it() -> None:
    shown = lines_of("text", REPOSITORY / "README.md")
    numbers = map(float, re.findall(r"0\.\d{3}", "".join(shown)))
    share, auc, masked, everywhere, correlation, untrained, pretrained = numbers
    held_out = {
        "discriminator_loss": share,
        "discriminator_entropy": 1.0,
        "auc_all": auc,
        "accuracy_masked": masked,
        "accuracy_all": everywhere,
        "estimate_correlation": {"all": correlation},
    }
    logged = defaultdict(float, {"step": 1.0})
    lines = show(table(logged, logged, held_out, pretrained, untrained)).splitlines()
    assert lines[lines.index("held-out text") :] == shown


def test_the_generated_pages_are_up_to_date() -> None:
    for name, text in pages().items():
        assert (REFERENCE / name).read_text() == text, f"docs/reference/{name}: run python docs/make_reference.py"


class LoadedSampler(HTMLParser):
    """Collects the addresses that a browser loads with a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "link" and given.get("rel") not in ("canonical", "next", "prev"):
            self.addresses.append(given.get("href") or "")
        elif tag in ("script", "img", "iframe", "source"):
            self.addresses.append(given.get("src") or "")


def test_the_site_has_every_page_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="the site needs the extra [docs]")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    process = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert 'not included in the "nav"' not in process.stderr
    for page in REPOSITORY.glob("docs/**/*.md"):
        built = tmp_path / page.relative_to(REPOSITORY / "docs").with_suffix(".html")
        loaded = LoadedSampler()
        loaded.feed(built.read_text())
        assert loaded.addresses and not [address for address in loaded.addresses if "//" in address], page


def test_continuous_integration_types_the_readmes_two_commands() -> None:
    section = (REPOSITORY / "README.md").read_text().partition("## From clone to trained model")[2]
    typed = re.findall(r"^make \w+", BLOCK.search(section)[2], re.MULTILINE)  # type: ignore[index]
    script = (REPOSITORY / ".ci/run").read_text()
    assert typed == ["make quickstart", "make test"] == re.findall(r"(?:^| )(make \w+)$", script, re.MULTILINE)
