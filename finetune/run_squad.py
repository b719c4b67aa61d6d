"""Fine-tune an exported discriminator, or a stock Hugging Face ELECTRA, on SQuAD 2.0 or 1.1.

    deepspeed finetune/run_squad.py --model OUT --data_dir SQUAD

One launch runs every seed; several at once share them. A finished run is a line of OUTPUT/results.jsonl, its answers
(predictions.json, n-best list, null odds, official metrics) lie in OUTPUT/predictions, and the same command again does
only what is not there yet. Tables: finetune/report.py.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from finetune.config import SquadConfig, SquadOptions
from finetune.presets import paper_grid, squad_settings_for
from finetune.running.records import RunIdentity
from finetune.squad.files import VERSIONS, load_squad, read_squad
from foundation.command_line import run_command

if TYPE_CHECKING:
    from finetune.squad.job import SquadJob


def main(options: SquadOptions) -> None:
    code = run_queue(options)
    from pretrain.job.processes import leave

    leave(code)


def run_queue(options: SquadOptions) -> int:
    """Runs what the options ask for and the output folder does not have yet; returns the exit code.

    Raises:
        ConfigError: a wrong model, file or setting; all data is read before the first run.
    """
    from finetune.running.model_folder import open_model
    from foundation.files import require_folder

    require_folder(options.output)
    model = open_model(options.model)
    version = VERSIONS[options.version]
    data = load_squad(version, options.data_dir)
    test = read_squad(options.test_file, labelled=False) if options.test_file else None
    hidden_size, positions = model.config.hidden_size, model.config.max_position_embeddings
    points = paper_grid(version.name, hidden_size) if options.grid else [{}]
    wanted = [squad_settings_for(hidden_size, positions, point | options.overrides()) for point in points]
    first = RunIdentity(
        task=version.name,
        seed=options.seeds[0],
        model_sha256=model.sha256,
        random_weights=options.random_weights,
        data_sha256=data.fingerprint(),
        settings=wanted[0],
    )
    planned = [first.model_copy(update={"settings": settings}) for settings in dict.fromkeys(wanted)]
    from finetune.running.run_list import run_unfinished
    from finetune.squad.job import answer_paths, make_job

    def prepare(run: RunIdentity) -> "SquadJob":
        assert isinstance(run.settings, SquadConfig)
        return make_job(version, data, model.tokenizer, run.settings, test)

    files = {version.name: answer_paths(test) if test else []}
    return run_unfinished(planned, prepare, files, model, options, options.output)


if __name__ == "__main__":
    sys.exit(run_command(main, SquadOptions, __doc__))
