"""Claims about the commands of a study: each is run once, and a rerun does only what is missing."""

from pathlib import Path
from threading import Thread

import pytest

from bench.study.jobs import Job, Jobs
from electra_sampler.foundation.config import ConfigError


def append(path: Path, code: int = 0) -> str:
    return f"python -c \"open('{path}', 'a').write('x'); raise SystemExit({code})\""


def test_a_finished_command_is_not_run_again_even_by_another_process(tmp_path: Path) -> None:
    job = Job("once", append(tmp_path / "runs"))
    assert Jobs(tmp_path, 1).run(job)
    assert Jobs(tmp_path, 1).run(job)
    assert (tmp_path / "runs").read_text() == "x"


def test_a_failed_command_is_run_again_and_its_seconds_add_up(tmp_path: Path) -> None:
    jobs, job = Jobs(tmp_path, 1), Job("fails", append(tmp_path / "runs", code=3))
    assert not jobs.run(job)
    first = jobs.record(job)
    assert first is not None and first.code == 3
    assert not jobs.run(job)
    again = jobs.record(job)
    assert again is not None and again.seconds > first.seconds
    assert (tmp_path / "runs").read_text() == "xx"


def test_another_command_of_the_same_name_is_run(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path, 1)
    assert jobs.run(Job("name", append(tmp_path / "one")))
    assert jobs.run(Job("name", append(tmp_path / "other")))
    assert (tmp_path / "other").exists()


def test_what_an_interrupted_command_made_is_removed_before_it_runs_again(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    command = f"python -c \"import os; os.mkdir('{tmp_path / 'made'}')\""
    assert Jobs(tmp_path, 1).run(Job("makes", command, tmp_path / "made"))


def test_a_command_that_two_cells_need_is_run_once(tmp_path: Path) -> None:
    jobs, job = Jobs(tmp_path, 2), Job("shared", append(tmp_path / "runs"))
    threads = [Thread(target=jobs.run, args=(job,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "runs").read_text() == "x"


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff", b"\x00", b'{"name": "once"}'])
def test_a_damaged_record_is_one_line_with_the_file_and_the_remedy(damage: bytes, tmp_path: Path) -> None:
    jobs = Jobs(tmp_path, 1)
    path = tmp_path / "logs" / "once.json"
    path.write_bytes(damage)
    with pytest.raises(
        ConfigError, match=rf"^output: {path} is damaged \(.+\), expected .*; remove it and rerun"
    ) as error:
        jobs.run(Job("once", append(tmp_path / "runs")))
    assert "\n" not in str(error.value) and not (tmp_path / "runs").exists()
