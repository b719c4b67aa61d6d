"""Time per epoch and peak memory of fine-tuning against Hugging Face Trainer with its stock classes.

    python bench/finetune.py --data_dir GLUE --squad_dir SQUAD --vocab data/vocab --preset small

CoLA: both train the same model, `ElectraForSequenceClassification` (ours with --head hf). SQuAD: the Trainer trains
`ElectraForQuestionAnswering` on the first questions; our head there is XLNet's, which is larger. Word pieces, batch
size and dropout are the same, in fp32. Each training runs in its own process, and the two take turns. The model is
randomly initialized unless --model is given. Each line ends with the speed-up over Hugging Face and, on CoLA, a score.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from electra_sampler.foundation.command_line import HIDDEN, run_command
from electra_sampler.foundation.config import ConfigError, StrictConfig
from finetune.config import GlueConfig, SquadConfig
from finetune.glue.files import load_task
from finetune.glue.tasks import TASKS, TaskData
from finetune.presets import settings_for
from finetune.squad.files import VERSIONS, SquadData, SquadFile, load_squad

if TYPE_CHECKING:
    from pretrain.huggingface.stored import Stored

FP32 = Path(__file__).resolve().parents[1] / "ds_configs" / "zero0_fp32.json"
OURS, PEER = "this code", "Hugging Face"


class FinetuneBenchOptions(StrictConfig):
    """The command line of the benchmark."""

    data_dir: Path = Path("data/glue")
    """folder holding CoLA/train.tsv and dev.tsv"""
    squad_dir: Path = Path("data/squad")
    """folder holding train-v2.0.json and dev-v2.0.json"""
    vocab: str = "data/vocab"
    """vocab.txt or tokenizer folder for the random model"""
    preset: Literal["tiny", "small", "base"] = "small"
    """sizes of the random model"""
    model: Path | None = None
    """stock ELECTRA folder to train instead"""
    batch_size: int = 32
    """examples per batch"""
    questions: int = 100
    """SQuAD questions; each makes several windows of 512 word pieces"""
    turns: int = 2
    """trainings by each contender"""
    contender: Annotated[Literal["this code", "Hugging Face"] | None, HIDDEN] = None
    task: Annotated[Literal["CoLA", "SQuAD 2.0"], HIDDEN] = "CoLA"


class Training(NamedTuple):
    """Result of one training process."""

    seconds: float
    """Median per epoch, without start-up and evaluation."""
    peak_mb: float
    """Peak GPU memory, or the process's peak memory without a GPU."""
    score: float | None
    """Matthews correlation on CoLA's dev set; None for SQuAD."""


def main(options: FinetuneBenchOptions) -> None:
    if options.contender:
        print("\n" + json.dumps(train_once(options)))
        return
    present = []
    for task, needed in (("CoLA", options.data_dir / "CoLA"), ("SQuAD 2.0", options.squad_dir)):
        if needed.is_dir():
            present.append(task)
        else:
            print(f"{task}: skipped, {needed} does not exist")
    with tempfile.TemporaryDirectory() as folder:
        for task in present:
            model = options.model or stock_model(options, Path(folder))
            report(task, take_turns(options, task, model), options)


def stock_model(options: FinetuneBenchOptions, folder: Path) -> Path:
    """Saves a randomly initialized stock discriminator of the preset's sizes with a tokenizer; returns its folder."""
    import torch
    from transformers import BertTokenizerFast, ElectraConfig, ElectraForPreTraining

    from pretrain.presets import preset

    vocab = Path(options.vocab)
    vocab = vocab / "vocab.txt" if vocab.is_dir() else vocab
    if not vocab.is_file():
        raise ConfigError(f"vocab: no file {vocab}; give --vocab a vocab.txt or its folder, or give --model")
    tokenizer = BertTokenizerFast(vocab=str(vocab))
    tokenizer.save_pretrained(folder)
    sizes = vars(preset(options.preset).model.discriminator(len(tokenizer)))
    fields = {name: value for name, value in sizes.items() if not name.startswith("relative")}
    torch.manual_seed(0)
    ElectraForPreTraining(ElectraConfig(**fields | {"max_position_embeddings": 512})).save_pretrained(folder)
    return folder


def take_turns(options: FinetuneBenchOptions, task: str, model: Path) -> dict[str, list[Training]]:
    """Lets the contenders train in turn; returns the results of each one's trainings."""
    found: dict[str, list[Training]] = {PEER: [], OURS: []}
    quiet = os.environ | {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    for _ in range(options.turns):
        for name, trainings in found.items():
            command = [sys.executable, __file__, "--contender", name, "--task", task, "--model", str(model)]
            for option in ("data_dir", "squad_dir", "batch_size", "questions"):
                command += [f"--{option}", str(getattr(options, option))]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=quiet)
            trainings.append(Training(*json.loads(done.stdout.splitlines()[-1])))
    return found


def train_once(options: FinetuneBenchOptions) -> Training:
    """Trains once in this process by the named contender, without importing code of the other one."""
    from bench.memory import peak_mb
    from pretrain.huggingface.stored import read_stored

    assert options.model
    model = read_stored(options.model)
    settings = settings_of(options, model)
    run = train_ours if options.contender == OURS else train_theirs
    seconds, score = run(options, settings, model)
    return Training(statistics.median(seconds), peak_mb(), score)


def settings_of(options: FinetuneBenchOptions, model: "Stored") -> GlueConfig | SquadConfig:
    """Returns the paper's settings without layer-wise learning rate decay, which the Trainer lacks."""
    sizes = (model.config.hidden_size, model.config.max_position_embeddings)
    given: dict[str, Any] = {"batch_size": options.batch_size, "epochs": 1, "layer_decay": 1.0}
    if options.task == "CoLA":
        return settings_for(GlueConfig, "CoLA", *sizes, given | {"head": "hf"})
    return settings_for(SquadConfig, "SQuAD 2.0", *sizes, given)


def read_cola(options: FinetuneBenchOptions) -> TaskData:
    return load_task(TASKS["CoLA"], str(options.data_dir))


def read_questions(options: FinetuneBenchOptions) -> SquadFile:
    """Returns the first `questions` questions of the training file."""
    file = load_squad(VERSIONS["2.0"], options.squad_dir).train
    return SquadFile(file.paragraphs, file.questions[: options.questions])


def train_ours(
    options: FinetuneBenchOptions, settings: GlueConfig | SquadConfig, model: "Stored"
) -> tuple[list[float], float | None]:
    """Trains with this project's code; returns the seconds of each epoch and the score."""
    import torch

    from finetune.glue import job as glue_job
    from finetune.running.train import Run
    from finetune.squad import job as squad_job
    from pretrain.job.processes import start_processes

    job: Any
    if isinstance(settings, GlueConfig):
        job = glue_job.make_job(TASKS["CoLA"], read_cola(options), model.load_tokenizer(), settings)
    else:
        few = read_questions(options)
        job = squad_job.make_job(VERSIONS["2.0"], SquadData(few, few), model.load_tokenizer(), settings)
    torch.manual_seed(1)
    dropout: dict[str, Any] = {
        "hidden_dropout_prob": settings.dropout,
        "attention_probs_dropout_prob": settings.attention_dropout,
    }
    run = Run(model.encoder(**dropout), job, settings, 1, FP32, start_processes())
    started = time.perf_counter()
    run.train_epoch(0)  # ends by reading a number from the GPU, so the GPU has finished
    seconds = [time.perf_counter() - started]
    if options.task != "CoLA":
        return seconds, None
    run.engine.module.eval()
    return seconds, job.evaluate(run.engine.module, run.world).metrics["dev"]["matthews"]


def train_theirs(
    options: FinetuneBenchOptions, settings: GlueConfig | SquadConfig, model: "Stored"
) -> tuple[list[float], float | None]:
    """Trains with Hugging Face Trainer; returns the seconds of each epoch and the score."""
    import numpy as np

    from bench.peers.trainer import classification_rows, question_rows, train_peer
    from finetune.glue.job import METRICS, tokenize_examples
    from finetune.squad.features import make_windows

    tokenizer = model.load_tokenizer()
    with tempfile.TemporaryDirectory() as output:
        if isinstance(settings, SquadConfig):
            windows = make_windows(read_questions(options), tokenizer, settings, training=True)
            rows = question_rows(windows.features)
            return train_peer(model.folder, tokenizer, rows, settings, Path(output), seed=1)[1], None
        data = read_cola(options)
        train, dev = (tokenize_examples(part, tokenizer, settings.max_length) for part in (data.train, data.dev["dev"]))
        rows = classification_rows(train)
        trainer, seconds = train_peer(model.folder, tokenizer, rows, settings, Path(output), seed=1)
        answers = trainer.predict(classification_rows(dev)).predictions.argmax(1)
        return seconds, METRICS["matthews"](np.array(dev.targets), answers)


def report(task: str, found: dict[str, list[Training]], options: FinetuneBenchOptions) -> None:
    import torch

    threads = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{torch.get_num_threads()} threads"
    size = options.model or options.preset
    print(f"{task}, {size}, batch {options.batch_size}, fp32, {threads}, torch {torch.__version__}")
    reference = statistics.median(training.seconds for training in found[PEER])
    for name, trainings in found.items():
        seconds = statistics.median(training.seconds for training in trainings)
        peak = max(training.peak_mb for training in trainings)
        score = "" if trainings[0].score is None else f"  Matthews {trainings[-1].score:.3f}"
        print(f"  {name:13} {seconds:8.1f} s per epoch  {peak:8,.0f} MB  {reference / seconds:5.2f}x {PEER}{score}")


if __name__ == "__main__":
    sys.exit(run_command(main, FinetuneBenchOptions, __doc__))
