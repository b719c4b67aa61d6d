"""Fine-tuning results as Markdown tables, beside the paper's rows.

python finetune/report.py RUNS... [--output FILE]
"""

from pathlib import Path
from typing import Annotated

from electra_sampler.foundation.command_line import POSITIONAL, run_script
from electra_sampler.foundation.config import StrictConfig
from electra_sampler.foundation.files import require_own, write_atomically


class ReportOptions(StrictConfig):
    """The command line of `report.py`."""

    runs: Annotated[tuple[Path, ...], POSITIONAL]
    """output folders of run_glue.py, run_squad.py or run_tagging.py"""
    output: Path | None = None
    """Markdown file (report.md in the first of RUNS)"""


def main(options: ReportOptions) -> None:
    from finetune.reporting.results import load_runs, make_rows  # scipy, which --help need not wait for
    from finetune.reporting.tables import markdown

    outputs = [path if path.is_dir() else path.parent for path in options.runs]
    output = options.output or outputs[0] / "report.md"
    text = markdown(make_rows(load_runs(options.runs)), outputs)
    require_own(output, text.partition("\n")[0])
    write_atomically(output, text.encode())
    print(f"{text}\nwritten to {output}")


if __name__ == "__main__":
    run_script(main)
