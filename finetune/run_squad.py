"""Fine-tune an exported discriminator, or a stock Hugging Face ELECTRA, on SQuAD 2.0 or 1.1.

    deepspeed finetune/run_squad.py --model OUT --data_dir SQUAD

One launch runs every seed; several at once share them. A finished run is a line of OUTPUT/results.jsonl, its answers
(predictions.json, n-best list, null odds, official metrics) lie in OUTPUT/predictions, and the same command again does
only what is not there yet. Tables: finetune/report.py.
"""

import sys
from pathlib import Path
from typing import cast

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from finetune.config import SquadConfig, SquadOptions
from finetune.presets import squad_settings_for
from finetune.squad.files import VERSIONS, load_squad, read_squad
from foundation.command_line import run_command
from foundation.files import require_folder


def main(options: SquadOptions) -> None:
    code = run_queue(options)
    from pretrain.job.processes import leave

    leave(code)


def run_queue(options: SquadOptions) -> int:
    """Runs what the options ask for and the output folder does not have yet; returns the exit code.

    Raises:
        ConfigError: a wrong model, file or setting; all data is read before the first run.
    """
    require_folder(options.output)
    from finetune.running.model_folder import open_model, plan_runs
    from finetune.running.run_list import run_unfinished
    from finetune.squad.job import answer_paths, make_job

    model = open_model(options.model)
    version = VERSIONS[options.version]
    data = load_squad(version, options.data_dir)
    test = read_squad(options.test_file, labelled=False) if options.test_file else None
    return run_unfinished(
        plan_runs(options, model, version.name, data.fingerprint(), squad_settings_for, options.overrides()),
        lambda run: make_job(version, data, model.tokenizer, cast(SquadConfig, run.settings), test),
        {version.name: answer_paths(test) if test else []},
        model,
        options,
        options.output,
    )


if __name__ == "__main__":
    sys.exit(run_command(main, SquadOptions, __doc__))
