"""Fine-tune an exported discriminator, or a stock Hugging Face ELECTRA, on named entities or parts of speech.

    deepspeed finetune/run_tagging.py --model OUT --task NER --data_dir WNUT17
    python finetune/run_tagging.py --model OUT --task POS --data_dir UD_English-GUM

DATA_DIR has one file with "train" in its name and one with "dev" or "valid": CoNLL columns (word first, label last), or
CoNLL-U if it ends in .conllu. One launch runs every seed; several at once share them. A finished run is one line of
OUTPUT/results.jsonl, with its predictions in OUTPUT/predictions; the same command runs only what is missing. Tables:
finetune/report.py.
"""

from electra_sampler.foundation.command_line import run_script
from finetune.config import TaggingOptions


def main(options: TaggingOptions) -> None:
    from finetune.running.run_list import launch
    from finetune.tagging.job import load

    launch(options, load)


if __name__ == "__main__":
    run_script(main)
