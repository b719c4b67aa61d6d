"""BabyLM's official scorer with a model of ours: its reader, ranking and report, and our likelihood of a completion.

    python bench/babylm.py babylm-eval/strict exported/own --data evaluation_data/full_eval/blimp_filtered

The first argument is the folder `strict` of a checkout of github.com/babylm-org/babylm-eval (tried at 45fe2c1), whose
back ends have no place for a discriminator. Reports and predictions go where those of its back end `mlm` would.
"""

import sys
from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import torch

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from electra_sampler.foundation.command_line import POSITIONAL, run_command
from electra_sampler.foundation.config import ConfigError, StrictConfig
from finetune.scoring import Scorer, open_scorer

PACKAGE = "evaluation_pipeline.sentence_zero_shot"
NOT_GROUPS = ("sentences", "completions", "prefixes", "label")
"""Keys of an item by which the official report does not group."""


class BabylmOptions(StrictConfig):
    """The command line of `babylm.py`."""

    checkout: Annotated[Path, POSITIONAL]
    """folder strict of a checkout of babylm-eval"""
    model: Annotated[str, POSITIONAL]
    """run or exported folder"""
    data: Path
    """folder of the task's .jsonl files"""
    task: str = "blimp"
    """the pipeline's name of the task"""


def main(options: BabylmOptions) -> None:
    """Runs the official command with its model, its data loader and its scores replaced."""
    if not (options.checkout / PACKAGE.replace(".", "/") / "run.py").is_file():
        raise ConfigError(f"checkout: {options.checkout} has no {PACKAGE}; name the folder strict of babylm-eval")
    sys.path.append(str(options.checkout))
    parts: list[Any] = [import_module(f"{PACKAGE}.{name}") for name in ("run", "read_files", "compute_results")]
    run, reader, results = parts
    run.get_model = lambda _: open_scorer(options.model, ["likelihood"])
    run.get_dataloader, run.compute_results = reader.read_files, partial(compute_results, results)
    sys.argv[1:] = ["--backend=mlm", "--save_predictions", f"--task={options.task}", f"--data_path={options.data}"]
    sys.argv.append(f"--model_path_or_name={options.model}")
    run.main()


def compute_results(
    official: ModuleType, args: Namespace, scorer: Scorer, items: Sequence[dict[str, Any]], temperatures: list[float]
) -> tuple[dict[float, Any], dict[float, Any]]:
    """Returns what the official function does, counts and predictions by temperature, with our scores ranked."""
    (one,) = temperatures
    counts: dict[float, Any] = {one: {}}
    chosen: dict[float, Any] = {one: defaultdict(list)}
    groups = [{key: value for key, value in item.items() if key not in NOT_GROUPS} for item in items]
    columns = {one: torch.tensor([*totals(scorer, items)]).unbind(1)}
    labels, names = ([item[key] for item in items] for key in ("label", "UID"))
    official.update_subset_to_stats(counts, groups)
    rank = official.rank_and_evaluate_wug if "wug" in args.task else official.rank_and_evaluate
    rank(args, counts, columns, items, labels, groups, names, chosen)
    return counts, {one: {name: {"predictions": found} for name, found in chosen[one].items()}}


def totals(scorer: Scorer, items: Sequence[dict[str, Any]]) -> Iterator[list[float]]:
    """Yields the scores of each item's completions: sums over the tokens that reach into them."""
    found = scorer.scores({sentence for item in items for sentence in item["sentences"]})
    for item in items:
        sums = []
        for sentence, completion in zip(item["sentences"], item["completions"], strict=True):
            spans = scorer.tokenizer(sentence, return_offsets_mapping=True)["offset_mapping"][1:-1]
            inside = [end > len(sentence) - len(completion) for _, end in spans]
            sums.append(found[sentence]["likelihood"][inside].sum())
        yield sums


if __name__ == "__main__":
    sys.exit(run_command(main, BabylmOptions, __doc__))
