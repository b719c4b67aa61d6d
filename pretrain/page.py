"""Write a run as one HTML page: verdict, curves, throughput, an example, settings, faults. Needs no server or network.

python pretrain/page.py runs/base
python pretrain/page.py runs/electra runs/base --output compared.html
"""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from electra_sampler.foundation.command_line import POSITIONAL, run_script
from electra_sampler.foundation.config import StrictConfig
from pretrain.method.registry import GivenObjective

MOST_RUNS = 6
"""Most runs on one page; more colors would be hard to distinguish."""


class PageOptions(StrictConfig):
    """The command line of `page.py`."""

    runs: Annotated[tuple[Path, ...], POSITIONAL, Field(min_length=1, max_length=MOST_RUNS)]
    """run folders; several are drawn on the same charts"""
    objective: tuple[GivenObjective, ...] = ()
    """sampler of the runs, if not built in: FILE.py:CLASS or package.module:CLASS"""
    output: Path | None = None
    """HTML file to write (FIRST RUN/page.html)"""


def main(options: PageOptions) -> None:
    from pretrain.analysis.run_page import write_page

    path = options.output or options.runs[0] / "page.html"
    write_page(options.runs, path)
    print(f"page     {path}")


if __name__ == "__main__":
    run_script(main)
