"""Predict with a fine-tuned model that `run_glue.py`, `run_tagging.py` or `run_squad.py` has kept.

    python finetune/predict.py runs/glue/finetuned/CoLA-seed5-... sentences.txt > labels.jsonl
    cut -f4 dev.tsv | python finetune/predict.py runs/glue/finetuned/CoLA-seed5-... -

The input has one example per line: a sentence; two texts separated by a tab; for tagging, words separated by spaces; or
a JSON object with the task's columns (tagging: words; SQuAD: question and context). For SQuAD it may also be a file in
SQuAD's own format. The output is one JSON object per example, in order.
"""

from typing import Annotated

from foundation.command_line import POSITIONAL, run_script
from foundation.config import StrictConfig


class PredictOptions(StrictConfig):
    """The command line of `predict.py`."""

    model: Annotated[str, POSITIONAL]
    """folder of a kept model, in OUTPUT/finetuned, or its name on the hub"""
    input: Annotated[str, POSITIONAL]
    """file with one example per line, a tab between two texts; - is standard input"""


def main(options: PredictOptions) -> None:
    import json

    from finetune.predictions import predict

    for prediction in predict(options.model, options.input):
        print(json.dumps(prediction, ensure_ascii=False))


if __name__ == "__main__":
    run_script(main)
