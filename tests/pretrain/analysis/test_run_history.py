"""Claims about reading run folders in any state."""

import json
import math
import shutil
from pathlib import Path

from electra_sampler.foundation.locks import Lock
from pretrain.analysis.run_history import nearest_preset, read_history, read_log, value_of
from pretrain.job.rank_log import EndRecord, write_record
from pretrain.presets import SMALL, TINY
from pretrain.runs.log import read_metrics
from tests.pretrain.analysis.runs import write_run


def test_a_short_log_is_read_like_in_the_run_itself(tmp_path: Path) -> None:
    write_run(tmp_path, 10, 20, 30)
    log = read_log(tmp_path / "metrics.jsonl")
    assert log.train == read_metrics(tmp_path, "train") and log.held_out == read_metrics(tmp_path, "held_out")
    assert log.damaged == 0


def test_damaged_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    sound = [b'{"kind": "train", "step": %d, "mlm_loss": 0.5}' % step for step in (1, 2, 3)]
    strange = [b"\xff\xfe\x00", b"[]", b'{"kind": "train", "step": 1, "step": "x"}', b'{"kind": "train", "step": 4, ]}']
    deep = b'{"kind": "train", "step": 5, "a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    path.write_bytes(b"\n".join([*sound, *strange, deep, b'{"kind": "train", "step": 9999, "mlm_l']))
    log = read_log(path)
    assert [record["step"] for record in log.train] == [1, 2, 3]
    assert log.damaged == len(strange) + 2


def test_a_number_that_cannot_be_drawn_is_nan(tmp_path: Path) -> None:
    record = json.loads('{"a": {"b": [1, 2.5]}, "s": "3", "n": NaN, "h": 1e300, "i": 1' + "0" * 400 + ', "x": null}')
    assert value_of(record, "a/b/1") == 2.5
    for path in ("a", "a/b", "a/b/2", "a/c", "s", "n", "h", "i", "x", "a/b/1/0", "missing"):
        assert math.isnan(value_of(record, path)), path


def test_the_state_tells_how_the_run_ended(tmp_path: Path) -> None:
    steps = TINY.optim.steps
    write_run(tmp_path, 50)
    assert read_history(tmp_path).state == f"Stopped, step 50 of {steps:,}"
    (tmp_path / "logs").mkdir()
    write_record(tmp_path, EndRecord.of(0)._replace(reason="stopped", step=76))
    assert read_history(tmp_path).state == f"Stopped, step 76 of {steps:,}"
    (tmp_path / "checkpoints" / "step-00000080").mkdir(parents=True)
    assert read_history(tmp_path).state == f"Stopped, step 80 of {steps:,}"
    shutil.rmtree(tmp_path / "checkpoints")
    write_record(tmp_path, EndRecord.of(0))
    lock = Lock(tmp_path / "lock")
    assert read_history(tmp_path).state == f"Running, step 50 of {steps:,}"
    lock.release()
    write_record(tmp_path, EndRecord.of(0)._replace(reason="error", sentence="out of memory"))
    failed = read_history(tmp_path)
    assert failed.state == f"Failed, step 50 of {steps:,}"
    assert failed.cause.startswith("rank 0 on ") and failed.cause.endswith(": out of memory")
    write_run(tmp_path, 50, steps)
    assert read_history(tmp_path).state == f"Finished, {steps:,} steps"


def test_a_run_that_failed_at_its_start_has_a_history(tmp_path: Path) -> None:
    write_run(tmp_path)
    (tmp_path / "starts.jsonl").write_bytes(b'{"step": 0}\n\xff\n[1]\n')
    (tmp_path / "nonfinite-step-1.json").touch()
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank-0000.log").write_bytes(b"WARNING: disk\nx\nWARNING: disk\nWARNING: \xff\n")
    history = read_history(tmp_path)
    assert (history.step, history.log.train, history.starts) == (0, [], [{"step": 0}])
    assert history.nonfinite == [1] and history.warnings["WARNING: disk"] == 2 and len(history.warnings) == 2


def test_the_nearest_preset_differs_in_the_runs_own_settings() -> None:
    assert nearest_preset(SMALL.model_copy(update={"seed": 7})) == ("small", {"seed": (0, 7)})
