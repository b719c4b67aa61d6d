"""Fine-tune an exported discriminator, or a stock Hugging Face ELECTRA, on SQuAD 2.0 or 1.1.

    deepspeed finetune/run_squad.py --model OUT --data_dir SQUAD

One launch runs every seed; several at once share them. A finished run is one line of OUTPUT/results.jsonl, with its
answers (predictions.json, n-best list, null odds, official metrics) in OUTPUT/predictions; the same command runs only
what is missing. Tables: finetune/report.py.
"""

from electra_sampler.foundation.command_line import run_script
from finetune.config import SquadOptions


def main(options: SquadOptions) -> None:
    from finetune.running.run_list import launch
    from finetune.squad.job import load

    launch(options, load)


if __name__ == "__main__":
    run_script(main)
