"""Fine-tune an exported discriminator, or a stock Hugging Face ELECTRA, on SQuAD 2.0 or 1.1.

    deepspeed finetune/run_squad.py --model OUT --data_dir SQUAD

One launch runs every seed. A finished run is a line of OUTPUT/results.jsonl, its answers (predictions.json, n-best
list, null odds, official metrics) lie in OUTPUT/predictions, and the same command again runs only what is not there
yet. Tables: finetune/report.py.
"""

import sys
from pathlib import Path

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from data_prep.command_line import run_command
from finetune.config import SquadOptions
from finetune.presets import squad_settings_for
from finetune.records import RunIdentity
from finetune.tasks.squad import VERSIONS, load_squad


def main(options: SquadOptions) -> None:
    run_queue(options)
    from pretrain.processes import leave

    leave(0)


def run_queue(options: SquadOptions) -> None:
    """Runs what the options ask for and the output folder does not have yet.

    Raises:
        ConfigError: a wrong model, file or setting; all data is read before the first run.
    """
    from finetune.model_folder import open_model

    model = open_model(options.model)
    version = VERSIONS[options.version]
    data = load_squad(version, options.data_dir)
    shape = model.config
    settings = squad_settings_for(shape.hidden_size, shape.max_position_embeddings, options.overrides())
    run = RunIdentity(
        task=version.name,
        seed=options.seeds[0],
        model_sha256=model.sha256,
        random_weights=options.random_weights,
        data_sha256=data.fingerprint(),
        settings=settings,
    )
    from finetune.run_list import run_unfinished
    from finetune.squad_job import make_job

    job = make_job(version, data, model.tokenizer, settings)
    run_unfinished([run], lambda run: job, model, options, options.output)


if __name__ == "__main__":
    sys.exit(run_command(main, SquadOptions, __doc__))
