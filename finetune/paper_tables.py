"""The paper's GLUE results, and which task, dev split and metric each of its columns is.

Source: "Learning to Sample Replacements for ELECTRA Pre-Training" (Findings of ACL 2021), its GLUE
results of small and of base models: dev sets, medians over five seeds, per cent.
"""

from typing import NamedTuple

from finetune.presets import ModelSize


class Column(NamedTuple):
    """One column of a report."""

    title: str
    task: str
    split: str
    metric: str
    paper_index: int | None = None
    """Place in the rows of `PAPER_ROWS`; none for what the paper does not report."""


# STS-B: the paper's table says Pearson, its text Spearman; its number stands under both.
COLUMNS = (
    Column("MNLI-m", "MNLI", "dev_matched", "accuracy", 0),
    Column("MNLI-mm", "MNLI", "dev_mismatched", "accuracy", 1),
    Column("QNLI", "QNLI", "dev", "accuracy", 2),
    Column("QQP", "QQP", "dev", "accuracy", 3),
    Column("QQP F1", "QQP", "dev", "f1"),
    Column("RTE", "RTE", "dev", "accuracy", 4),
    Column("SST-2", "SST-2", "dev", "accuracy", 5),
    Column("MRPC", "MRPC", "dev", "accuracy", 6),
    Column("MRPC F1", "MRPC", "dev", "f1"),
    Column("CoLA", "CoLA", "dev", "matthews", 7),
    Column("STS-B Spearman", "STS-B", "dev", "spearman", 8),
    Column("STS-B Pearson", "STS-B", "dev", "pearson", 8),
    Column("WNLI", "WNLI", "dev", "accuracy"),
)

_Row = tuple[float | None, ...]

PAPER_ROWS: dict[ModelSize, dict[str, _Row]] = {
    "small": {
        "ELECTRA (reimplementation)": (80.3, 80.6, 89.0, 89.2, 62.2, 89.0, 87.3, 59.6, 86.3),
        "HP_Loss + Focal": (81.2, 81.7, 89.1, 89.6, 66.1, 89.2, 86.6, 59.3, 86.7),
        "HP_Dist + Focal": (81.0, 81.8, 89.3, 89.6, 62.5, 89.2, 86.8, 59.7, 86.8),
    },
    "base": {
        "BERT": (84.5, None, 88.6, 90.8, 68.5, 92.8, 86.0, 58.4, 87.8),
        "RoBERTa": (84.7, None, None, None, None, 92.7, None, None, None),
        "XLNet": (85.8, None, None, None, None, 93.4, None, None, None),
        "ELECTRA": (86.2, None, 92.4, 90.9, 76.3, 92.4, 87.9, 65.8, 89.1),
        "Electric": (85.7, None, 92.1, 90.6, 73.4, 91.9, 88.0, 61.8, 89.4),
        "ELECTRA (reimplementation)": (86.7, 86.5, 92.6, 91.4, 80.4, 92.6, 89.1, 66.5, 91.0),
        "HP_Loss + Focal": (87.0, 86.9, 92.7, 91.7, 81.3, 92.6, 90.7, 66.7, 91.0),
        "HP_Dist + Focal": (86.8, 86.8, 92.3, 91.6, 80.0, 92.7, 89.8, 67.3, 90.9),
    },
}
