"""finetune/report.py: medians with their spread, beside the paper's rows."""

from pathlib import Path

import pytest

from electra_sampler.foundation.config import ConfigError
from finetune.report import ReportOptions, main
from finetune.reporting.results import make_rows
from finetune.reporting.tables import markdown
from finetune.running.records import RunRecord, append_record
from tests.finetune.conftest import make_record, squad_record


def report(*records: RunRecord) -> str:
    return markdown(make_rows(records))


def line_of(label: str, text: str) -> str:
    (line,) = (line for line in text.splitlines() if line.startswith(f"| {label} |"))
    return line


def test_a_cell_is_the_median_with_its_spread_and_number_of_seeds() -> None:
    text = report(*(make_record(score, seed=seed) for seed, score in enumerate((0.59, 0.62, 0.5))))
    assert line_of("runs/small/export", text) == "| runs/small/export | **59.0** (50.0–62.0; 3) |"


def test_the_papers_rows_for_the_models_size_are_below() -> None:
    text = report(make_record())
    assert line_of("*paper, small: HP_Loss + Focal*", text) == "| *paper, small: HP_Loss + Focal* | 59.3 |"
    assert "paper, base" not in text
    assert "66.7" in line_of("*paper, base: HP_Loss + Focal*", report(make_record(model_size="base")))


def test_models_of_the_same_name_are_distinguished_by_content() -> None:
    text = report(make_record(0.3), make_record(0.1, model_sha256="c" * 64))
    assert "**30.0**" in line_of("runs/small/export aaaaaaa", text)
    assert "**10.0**" in line_of("runs/small/export ccccccc", text)


def test_a_collapsed_run_stays_in_the_median_and_is_marked() -> None:
    text = report(
        make_record(0.6, seed=1),
        make_record(0.0, seed=2, collapsed="constant prediction"),
        make_record(0.5, seed=3),
    )
    assert "**50.0** (0.0–60.0; 3, 1 collapsed)" in text
    assert "Collapsed:" in text


def test_the_best_setting_is_shown_and_its_selection_stated() -> None:
    text = report(make_record(0.5), make_record(0.6, epochs=5), make_record(0.4, epochs=4))
    assert "**60.0*** (60.0–60.0; 1)" in text.replace("\\", "")
    assert "best median of several settings" in text
    assert "several settings" not in report(make_record())


def test_another_training_set_is_marked_as_not_comparable() -> None:
    assert "†" in report(make_record(train_examples=3000))
    assert "†" not in report(make_record())


def test_a_task_with_several_splits_and_metrics_fills_several_columns() -> None:
    mnli = {"dev_matched": {"accuracy": 0.8}, "dev_mismatched": {"accuracy": 0.81}}
    stsb = {"dev": {"spearman": 0.86, "pearson": 0.87}}
    text = report(make_record(task="MNLI", last=mnli), make_record(task="STS-B", last=stsb))
    header, _, row = text.splitlines()[4:7]
    assert header == "| model | MNLI-m | MNLI-mm | STS-B Spearman | STS-B Pearson |"
    assert all(cell in row for cell in ("80.0", "81.0", "86.0", "87.0"))
    assert line_of("*paper, small: HP_Loss + Focal*", text).endswith("| 81.2 | 81.7 | 86.7 | 86.7 |")


def test_squad_has_its_own_table_beside_the_papers_rows() -> None:
    text = report(make_record(), squad_record(0.7, seed=1), squad_record(0.72, seed=2), squad_record(0.75, seed=3))
    glue, squad = text.split("## SQuAD\n")
    assert "SQuAD" not in glue
    assert line_of("runs/small/export", squad).startswith("| runs/small/export | **72.0** (70.0–75.0; 3) |")
    assert line_of("*paper, small: HP_Dist + Focal*", squad).startswith(
        "| *paper, small: HP_Dist + Focal* | 73.2 | 75.5 | 73.2 | 75.5 | – |"
    )
    assert "The paper does not name its threshold" in squad
    assert "CoLA" not in report(squad_record(0.7))
    assert "†" in report(squad_record(0.7, train_examples=14_162))


def test_the_ablation_table_lists_models_with_both_of_its_scores() -> None:
    scores = {"dev_matched": {"accuracy": 0.8}, "dev_mismatched": {"accuracy": 0.81}}
    mnli = make_record(task="MNLI", train_examples=392_702, last=scores)
    assert "## Ablation" not in report(mnli)
    other = squad_record(0.6, model="another", model_sha256="c" * 64)
    ablation = report(mnli, squad_record(0.7), other).split("## Ablation\n")[1].split("\n\n")[0]
    assert line_of("runs/small/export", ablation) == (
        "| runs/small/export | **80.0** (80.0–80.0; 1) | **70.0** (70.0–70.0; 1) |"
    )
    assert "another" not in ablation
    assert "| *paper, small: HP_Loss, lambda1=10* | 81.1 | 75.1 |" in ablation


def test_the_command_writes_the_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    append_record(tmp_path / "run" / "results.jsonl", make_record())
    output = tmp_path / "tables" / "glue.md"
    main(ReportOptions(runs=(tmp_path / "run",), output=output))
    assert "**50.0**" in output.read_text()
    assert output.read_text() in capsys.readouterr().out


def test_a_report_replaces_a_report_and_no_other_file(tmp_path: Path) -> None:
    append_record(tmp_path / "results.jsonl", make_record())
    for _ in range(2):
        main(ReportOptions(runs=(tmp_path,)))
    (tmp_path / "report.md").write_text("# Fine-tuning results\n\nmy own notes")
    with pytest.raises(ConfigError, match=r"output: .*report\.md was not written by this command"):
        main(ReportOptions(runs=(tmp_path,)))
    assert "my own notes" in (tmp_path / "report.md").read_text()
