"""Scripts of the project, and what none of them may import before it knows what to do."""

from tests.conftest import REPOSITORY

PACKAGES = ("data_prep", "pretrain", "finetune", "electra_sampler/quickstart")


SCRIPTS = [
    path.relative_to(REPOSITORY).as_posix()
    for package in PACKAGES
    for path in sorted((REPOSITORY / package).glob("*.py"))
    if '__name__ == "__main__"' in path.read_text()
]


SCREEN = (48, 100)  # lines, columns


HEAVY = (
    "torch",
    "transformers",
    "deepspeed",
    "datasets",
    "nltk",
    "py3langid",
    "matplotlib",
    "scipy",
    "sklearn",
    "megatron",
)
