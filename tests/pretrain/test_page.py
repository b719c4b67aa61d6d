"""Claims about the command that writes a page; the last test uses runs trained by the real command."""

from pathlib import Path

import pytest

from electra_sampler.foundation.command_line import parse_options
from electra_sampler.foundation.config import ConfigError
from pretrain.analysis.figures import PALETTE
from pretrain.page import MOST_RUNS, PageOptions, main
from pretrain.presets import PAPER
from tests.pretrain.analysis.runs import write_run
from tests.pretrain.whole_runs import Launch, finished, run_arguments


def test_the_page_is_written_to_the_first_run_and_the_command_prints_its_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tuple(write_run(tmp_path / name, 50) for name in "ab")
    main(PageOptions(runs=runs))
    assert capsys.readouterr().out.splitlines()[-1] == f"page     {runs[0] / 'page.html'}"
    main(PageOptions(runs=runs[:1], output=tmp_path / "other.html"))
    compared, alone = (path.read_text() for path in (runs[0] / "page.html", tmp_path / "other.html"))
    assert "<h1>2 runs</h1>" in compared and "<h1>a</h1>" in alone


def test_more_runs_than_colors_are_refused() -> None:
    assert len(PALETTE) == MOST_RUNS
    with pytest.raises(ConfigError, match="runs"):
        parse_options(PageOptions, None, ["run"] * (MOST_RUNS + 1))


@pytest.mark.long
@pytest.mark.parametrize("objective", PAPER)
def test_trained_runs_of_every_objective_have_a_page(
    objective: str, shards_folder: Path, tmp_path: Path, launch: Launch
) -> None:
    few = ("optim.steps=6", "histogram_every=3", "--objective", objective)
    finished(launch(0, *run_arguments(shards_folder, tmp_path / "run", *few)))
    main(PageOptions(runs=(tmp_path / "run",)))
    page = (tmp_path / "run" / "page.html").read_text()
    assert "Finished, 6 steps" in page and 'class="example"' in page and "1 start;" in page
