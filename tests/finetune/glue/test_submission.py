"""finetune/glue/submission.py: the words and scores that gluebenchmark.com takes."""

import numpy as np
import pytest

from finetune.glue.submission import submission
from finetune.glue.tasks import AX, TASKS, Task


@pytest.mark.parametrize(
    ("task", "predicted", "labels"),
    [
        (TASKS["CoLA"], [1.0, 0.0], ["1", "0"]),
        (TASKS["MNLI"], [0.0, 2.0], ["entailment", "contradiction"]),
        (TASKS["QNLI"], [0.0, 1.0], ["entailment", "not_entailment"]),
        (AX, [1.0, 1.0], ["neutral", "neutral"]),
        (TASKS["STS-B"], [0.75, 1.2], ["3.750", "5.000"]),
        (TASKS["STS-B"], [-0.1, 0.12345], ["0.000", "0.617"]),
    ],
)
def test_a_file_holds_glues_index_and_glues_word_or_score(
    task: Task, predicted: list[float], labels: list[str]
) -> None:
    text = submission(task, ["0", "17"], np.array(predicted))
    assert text == f"index\tprediction\n0\t{labels[0]}\n17\t{labels[1]}\n"
