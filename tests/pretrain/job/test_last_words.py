"""Claims about whose fault the end of a job was; with real ranks in test_supervise.py and tests/reliability."""

from pathlib import Path

import pytest

from pretrain.job.last_words import Listening, blamed

HEADER = "--- 2026-01-01T00:00:00+00:00 rank {rank} on node{rank}, process 123\n"
RESET = "rank {rank} on node{rank} failed after step 9: RuntimeError: Connection closed by peer\n"
TOLD = "rank {rank} on node{rank} ends: rank 1 on node1 failed after step 9: OSError: no route\nrank {rank} stands at\n"
LOST = "rank {rank} on node{rank} ends: not heard of for 60 s: rank 1 on node1 (after step 9)\n"
STOOD = (
    "rank {rank} on node{rank} ends: nothing moved for 600 s after step 9; standing elsewhere: rank 1 on node1 (a)\n"
)
NOTHING = "nothing moved for 600 s after step 9; "
TOLD_STOOD = "rank {rank} on node{rank} ends: rank 0 on node0: " + NOTHING + "standing elsewhere: rank 1 on node1 (a)\n"
ITSELF = (
    "rank 0 on node0 ends: " + NOTHING + "rank 0 on node0 itself is waited for, by rank 1 on node1 (after step 9)\n"
)
TOLD_ITSELF = "rank {rank} on node{rank} ends: rank 0 on node0: " + NOTHING + "rank 0 on node0 itself is waited for\n"
RAISED = "rank 1 on node1 failed after step 9: OSError: no route\nTraceback (most recent call last):\n"
SAVED = "rank {rank} on node{rank}: what launched it has ended; saving and stopping\n"


def add(folder: Path, rank: int, text: str) -> None:
    (folder / "logs").mkdir(exist_ok=True)
    with (folder / "logs" / f"rank-{rank:04d}.log").open("a") as file:
        file.write((HEADER + text).format(rank=rank))


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        ((RESET, "step 9\n", RESET), ["rank 1 on node1"]),
        ((RESET, "Fatal Python error: Segmentation fault\n", RESET), ["rank 1 on node1"]),
        ((TOLD, RAISED, TOLD), ["rank 1 on node1"]),
        ((LOST, "step 9\n", LOST), ["rank 1 on node1"]),
        ((STOOD, STOOD, STOOD), ["rank 1 on node1"]),
        ((STOOD, TOLD_STOOD, TOLD_STOOD), ["rank 1 on node1"]),
        ((ITSELF, TOLD_ITSELF, TOLD_ITSELF), ["rank 0 on node0"]),
        ((RESET, RAISED, RESET), ["rank 1 on node1"]),
        ((SAVED, SAVED, SAVED), []),
        ((RESET, RESET, RESET), []),
        (("step 9\n",), ["rank 0 on node0"]),
        (("Traceback (most recent call last):\nValueError: no\n",), ["rank 0 on node0"]),
    ],
    ids=[
        "killed",
        "crashed",
        "raised",
        "lost",
        "hung",
        "hung and told",
        "hung itself",
        "untold",
        "launcher killed",
        "none told",
        "one killed",
        "one raised",
    ],
)
def test_the_rank_that_ended_the_job_is_told_from_those_that_ended_with_it(
    texts: tuple[str, ...], names: list[str], tmp_path: Path
) -> None:
    listening = Listening(tmp_path)
    for rank, text in enumerate(texts):
        add(tmp_path, rank, text)
    assert [rank.name for rank in blamed(listening.words())] == names


def test_what_was_said_at_an_earlier_start_does_not_count(tmp_path: Path) -> None:
    add(tmp_path, 0, RESET)
    add(tmp_path, 1, "step 9\n")
    listening = Listening(tmp_path)
    assert listening.words() == []
    add(tmp_path, 0, "step 10\n")
    add(tmp_path, 1, RESET)
    assert [rank.name for rank in blamed(listening.words())] == ["rank 0 on node0"]
    assert listening.words()[0].text.endswith("step 10\n")


def test_of_a_long_end_its_first_line_is_shown_too(tmp_path: Path) -> None:
    listening = Listening(tmp_path)
    add(tmp_path, 0, "step 9\nFatal Python error: Bus error\n" + "a thread\n" * 50 + "the last\n")
    (rank,) = listening.words()
    assert rank.last_lines(3) == ["Fatal Python error: Bus error", "a thread", "a thread", "the last"]
    assert rank.last_lines(52)[:2] == ["Fatal Python error: Bus error", "a thread"]
