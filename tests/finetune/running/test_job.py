"""finetune/running/job.py: the jobs implement everything a run needs."""

import pytest

from finetune.glue.job import GlueJob
from finetune.running.job import Job
from finetune.squad.job import SquadJob


@pytest.mark.parametrize("kind", [GlueJob, SquadJob])
def test_every_job_has_what_a_run_needs(kind: type[Job]) -> None:
    assert Job.__abstractmethods__ == {"build", "losses", "evaluate", "to_hugging_face"}
    assert issubclass(kind, Job)
    assert not kind.__abstractmethods__
    assert {"task", "train_examples", "train", "pad_id"} <= kind.__dataclass_fields__.keys()
