"""finetune/running/job.py: GLUE and SQuAD give a run what it needs."""

import inspect

import pytest

from finetune.glue.job import GlueJob
from finetune.running.job import Job
from finetune.squad.job import SquadJob


@pytest.mark.parametrize("kind", [GlueJob, SquadJob])
def test_every_job_has_what_a_run_needs(kind: type) -> None:
    needed = {name for name, _ in inspect.getmembers(Job) if not name.startswith("_")}
    assert needed == {
        "task",
        "train_examples",
        "left_out",
        "train",
        "pad_id",
        "build",
        "losses",
        "evaluate",
        "predict_tests",
    }
    assert needed <= set(dir(kind)) | set(kind.__annotations__)
