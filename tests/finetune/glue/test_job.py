"""finetune/glue/job.py: examples become BERT's token ids; predictions keep their order and are scored per split."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from transformers import BertTokenizerFast, ElectraConfig
from transformers.models.electra.modeling_electra import ElectraClassificationHead

from finetune.glue.job import METRICS, GlueJob, SequenceClassifier, make_job, score, submission, tokenize_examples
from finetune.glue.tasks import AX, TASKS, Example, ExampleSet, GlueTask, TaskData
from finetune.running.job import Features, collate
from finetune.running.train import Run
from pretrain.huggingface.folders import load_tokenizer
from pretrain.huggingface.stored import read_stored
from pretrain.job.processes import start_processes
from tests.finetune.conftest import FP32, SETTINGS, small_encoder


@pytest.fixture(scope="module")
def run(stock_model: Path) -> Run:
    """An untrained model with MNLI's two dev splits of 150 and 20 sequences of many lengths."""
    random = np.random.default_rng(0)

    def features(count: int) -> Features:
        ids = [[2, *random.integers(5, 40, size=random.integers(1, 20)), 3] for _ in range(count)]
        return Features(ids, [[0] * len(row) for row in ids], [float(x) for x in random.integers(3, size=count)])

    job = GlueJob(
        task=TASKS["MNLI"],
        settings=SETTINGS,
        dev={"dev_matched": features(150), "dev_mismatched": features(20)},
        train=features(30),
        train_examples=30,
        pad_id=0,
        tests={},
    )
    made = Run(read_stored(stock_model).encoder(), job, SETTINGS, 1, FP32, start_processes())
    torch.manual_seed(0)
    for weight in made.engine.module.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight)  # different answers for different examples
    return made


def test_the_model_has_one_output_per_class(run: Run) -> None:
    assert len(run.engine.module.get_parameter("head.weight")) == 3


def test_several_outputs_are_classes_and_one_output_is_a_score(run: Run) -> None:
    batch = collate(Features([[2, 3]] * 2, [[0, 0]] * 2, [1.0, 2.0]), [0, 1], 0, torch.device("cpu"))
    output_BC = torch.tensor([[0.2, 1.5, -0.3], [2.0, 0.0, 0.1]])
    expected = -output_BC.log_softmax(1)[torch.arange(2), torch.tensor([1, 2])]
    torch.testing.assert_close(run.job.losses(output_BC, batch), expected)
    regression = replace(run.job, task=TASKS["STS-B"])
    scores = batch._replace(target_B=torch.tensor([1.0, 0.25]))
    torch.testing.assert_close(regression.losses(torch.tensor([[0.5], [0.25]]), scores), torch.tensor([0.25, 0.0]))


def test_every_example_has_its_own_prediction_and_each_split_its_scores(run: Run) -> None:
    assert isinstance(run.job, GlueJob)
    run.engine.module.eval()
    metrics, files, constant = run.job.evaluate(run.engine.module, run.world)
    assert not constant
    assert list(files) == ["examples.json"]
    for split, features in run.job.dev.items():
        alone = [
            int(run.engine.module(collate(features, [place], 0, torch.device("cpu"))).argmax())
            for place in range(len(features.targets))
        ]
        assert run.job.predict(features, run.engine.module, run.world).tolist() == alone
        assert metrics[split] == score(("accuracy",), np.array(features.targets), np.array(alone))
        assert files["examples.json"][split] == {"predicted": alone, "target": features.targets}


def test_unlabeled_examples_become_a_submission_and_labeled_ones_are_scored_too(stock_model: Path) -> None:
    examples = [Example(("word1", "word2"), 1.0)] * 2
    tests = {
        "MNLI-m.tsv": ExampleSet(TASKS["MNLI"], ["3", "4"], [Example(("word1", "word2"), math.nan)] * 2),
        "AX.tsv": ExampleSet(AX, ["0", "1"], examples),
    }
    data = TaskData(examples, dict.fromkeys(TASKS["MNLI"].dev_splits, examples), tests)
    made_job = make_job(TASKS["MNLI"], data, load_tokenizer(stock_model), SETTINGS)
    made = Run(read_stored(stock_model).encoder(), made_job, SETTINGS, 1, FP32, start_processes())
    made.engine.module.eval()
    metrics, files, _ = made_job.predict_tests(made.engine.module, made.world)
    assert metrics == {"AX": {"matthews": 0.0}}
    (folder,) = {path.split("/")[0] for path in files}
    assert list(files) == list(data.tests_by_path()) == [f"{folder}/MNLI-m.tsv", f"{folder}/AX.tsv"]
    (answer,) = set(files[f"{folder}/MNLI-m.tsv"].split()[3::2])
    assert answer in TASKS["MNLI"].classes
    assert files[f"{folder}/AX.tsv"] == f"index\tprediction\n0\t{answer}\n1\t{answer}\n"


@pytest.mark.parametrize(
    ("texts", "max_length", "pieces"),
    [
        (("The unaffable man",), 128, "[CLS] the una ##ffa ##ble man [SEP]"),
        (("A man", "Two men"), 128, "[CLS] a man [SEP] two men [SEP]"),
        (("one two", "a b c d e f g h"), 10, "[CLS] one two [SEP] a b c d e [SEP]"),
    ],
)
def test_one_text_and_a_pair_have_berts_form_and_a_long_pair_loses_the_end_of_its_longer_text(
    texts: tuple[str, ...], max_length: int, pieces: str, real_tokenizer: BertTokenizerFast
) -> None:
    features = tokenize_examples([Example(texts, 1.0)], real_tokenizer, max_length)
    assert real_tokenizer.convert_ids_to_tokens(features.input_ids[0]) == pieces.split()


def test_segments_and_targets_accompany_the_ids(real_tokenizer: BertTokenizerFast) -> None:
    features = tokenize_examples([Example(("A man", "Two men"), 0.5)], real_tokenizer, 128)
    assert (features.token_type_ids, features.targets) == ([[0, 0, 0, 0, 1, 1, 1]], [0.5])


FEATURES = Features([[2, 9, 3], [2, 8, 7, 6, 3]], [[0] * 3, [0] * 5], [1.0, 0.0])
CPU = torch.device("cpu")


def model(num_outputs: int, dropout: float = 0.1, head: Literal["electra", "hf"] = "electra") -> SequenceClassifier:
    return SequenceClassifier(small_encoder(hidden_dropout_prob=dropout), num_outputs, head)


def test_the_output_is_one_dense_layer_on_the_first_hidden_state() -> None:
    classifier = model(3).eval()
    batch = collate(FEATURES, [0, 1], 0, CPU)
    hidden_BLH = classifier.electra(batch.input_ids_BL, batch.attention_mask_BL, batch.token_type_ids_BL)
    torch.testing.assert_close(classifier(batch), hidden_BLH[:, 0] @ classifier.head.weight.T + classifier.head.bias)


def test_hugging_faces_head_is_electras_classification_head() -> None:
    classifier = model(3, head="hf").eval()
    reference = ElectraClassificationHead(ElectraConfig(hidden_size=16, num_labels=3)).eval()
    reference.load_state_dict(classifier.head.state_dict())
    batch = collate(FEATURES, [0, 1], 0, CPU)
    hidden_BLH = classifier.electra(batch.input_ids_BL, batch.attention_mask_BL, batch.token_type_ids_BL)
    torch.testing.assert_close(classifier(batch), reference(hidden_BLH))


@pytest.mark.parametrize("head", ["electra", "hf"])
def test_the_head_applies_dropout_only_in_training(head: Literal["electra", "hf"]) -> None:
    classifier = model(2, dropout=0.5, head=head)
    batch = collate(FEATURES, [0, 1], 0, CPU)
    assert not torch.equal(classifier.train()(batch), classifier(batch))
    assert torch.equal(classifier.eval()(batch), classifier(batch))


TARGET = np.array([1, 1, 1, 0, 0, 1, 0, 0, 0, 1])
PREDICTED = np.array([1, 0, 1, 0, 1, 1, 0, 0, 1, 1])  # 4 true and 2 false positives, 1 false and 3 true negatives


def test_classification_metrics_follow_their_definitions() -> None:
    assert score(("accuracy", "f1", "matthews"), TARGET, PREDICTED) == pytest.approx(
        {
            "accuracy": 7 / 10,
            "f1": 2 * 4 / (2 * 4 + 2 + 1),
            "matthews": (4 * 3 - 2 * 1) / np.sqrt(6 * 5 * 5 * 4),
        }
    )


def test_pearson_measures_linear_and_spearman_rank_correlation() -> None:
    target = np.array([0.1, 0.2, 0.4, 0.9])
    assert METRICS["pearson"](target, 3 * target - 1) == pytest.approx(1.0)
    assert METRICS["spearman"](target, np.exp(9 * target)) == pytest.approx(1.0)
    assert METRICS["pearson"](target, np.exp(9 * target)) == pytest.approx(
        np.corrcoef(target, np.exp(9 * target))[0, 1]
    )


def test_a_constant_prediction_has_its_accuracy_and_no_correlation() -> None:
    correlations = dict.fromkeys(("f1", "matthews", "pearson", "spearman"), 0)
    assert score(METRICS, TARGET, np.zeros(10)) == {"accuracy": 0.5} | correlations


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
def test_a_submission_has_glues_index_and_glues_label_or_score(
    task: GlueTask, predicted: list[float], labels: list[str]
) -> None:
    text = submission(task, ["0", "17"], np.array(predicted))
    assert text == f"index\tprediction\n0\t{labels[0]}\n17\t{labels[1]}\n"
