"""The console command: `electra-sampler NAME OPTIONS` does what `python SCRIPT OPTIONS` does in a checkout.

COMMANDS lists all commands, one line each. Only the module of the given command is imported.
"""

import importlib
import sys
from importlib.metadata import version

from electra_sampler.foundation.command_line import EXIT_BAD_USAGE, print_problems, run_script
from electra_sampler.foundation.config import one_of, shown
from electra_sampler.foundation.files import SHIPPED

PROGRAM = "electra-sampler"
COMMANDS = {
    "train-vocab": ("data_prep.train_vocab", "learn a vocabulary from text"),
    "build-shards": ("data_prep.build_shards", "build training shards from raw text"),
    "inspect-shards": ("data_prep.inspect_shards", "show the content of shards and check their integrity"),
    "pretrain": ("pretrain.run", "pre-train; several processes: deepspeed --module pretrain.run"),
    "supervise": ("pretrain.supervise", "run pre-training again when it fails"),
    "doctor": ("pretrain.doctor", "check a run's health and suggest fixes"),
    "page": ("pretrain.page", "show one or several runs in one HTML file"),
    "evaluate": ("pretrain.evaluate", "repeat the paper's analysis of runs, as tables and figures"),
    "export": ("pretrain.export", "export a run as a Hugging Face folder"),
    "glue": ("finetune.run_glue", "fine-tune on GLUE; several processes: deepspeed --module finetune.run_glue"),
    "squad": ("finetune.run_squad", "fine-tune on SQuAD; several processes: deepspeed --module finetune.run_squad"),
    "tagging": ("finetune.run_tagging", "fine-tune on NER or POS; several: deepspeed --module finetune.run_tagging"),
    "blimp": ("finetune.blimp", "score minimal pairs, without fine-tuning"),
    "score": ("finetune.score", "score the words of any sentences, without fine-tuning"),
    "show": ("finetune.show", "show a model at work, on a page to type into"),
    "report": ("finetune.report", "compare fine-tuned scores with the paper's"),
    "quickstart": ("electra_sampler.quickstart.run", "run the whole pipeline on a small corpus, offline"),
}
"""Each command's module and line of help."""
HELP = f"""usage: {PROGRAM} COMMAND [OPTIONS]
       {PROGRAM} COMMAND --help | --version

{{commands}}

DeepSpeed's settings and examples of hostfiles: {{root}}/ds_configs, {{root}}/hostfiles
"""


def main() -> int:
    """Runs the given command and exits with its exit code; returns one if none is run."""
    match sys.argv[1:]:
        case [name, *_] if name in COMMANDS:
            sys.argv[:2] = [f"{PROGRAM} {name}"]  # the beginning of its help and its errors
            run_script(importlib.import_module(COMMANDS[name][0]).main)
        case ["--version"]:
            print(PROGRAM, version(PROGRAM))
        case [] | ["--help" | "-h"]:
            commands = "\n".join(f"  {name:<16}{line}" for name, (_, line) in COMMANDS.items())
            print(HELP.format(commands=commands, root=SHIPPED), end="")
        case [name, *_]:
            print_problems([f"command: got {shown(name)}; {one_of(name, COMMANDS)}"])
            return EXIT_BAD_USAGE
    return 0
