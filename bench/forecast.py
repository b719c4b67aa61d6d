"""Predicts step time and whole runs: the work of a step over the rates at which a machine does it.

Two forms. On a machine where each kind of work was timed by itself (`bench/scaling.py`), a step is their sum. For a GPU
that nobody here has had, it is the matrix operations over an assumed share of the vendor's peak, but no less than it
takes to launch the kernels, and what the ranks exchange over the vendor's figure for the link: nothing overlapped.
"""

from typing import NamedTuple

from bench.traffic import least_traffic
from data_prep.masking import mask_size
from pretrain.config import RunConfig
from pretrain.training.estimates import flops_per_token

DAY = 86_400.0
KERNELS = 3_247
"""Of a whole step of small under the engine, 16 x 128, bf16, ZeRO-1: what PyTorch is asked for, views apart, as
`bench/engine.py` counts it, alone and on a CPU, without what is for CPUs alone (`pretrain/model/cpu_ops.py`): sums of
half precision, and the words that dropout makes its factors of."""
LAUNCH = 5e-6
"""Seconds to launch one in eager mode: assumed. CUDA graphs and fused kernels take less."""


class Work(NamedTuple):
    """Of one step in one process."""

    tokens: int
    length: int
    vocabulary: int

    @property
    def scores(self) -> float:
        """Positions that the heads see, times the tokens each has a score for."""
        return self.tokens / self.length * float(mask_size(self.length)) * self.vocabulary


class Costs(NamedTuple):
    """Seconds of each kind of work, timed by itself on one machine, for one model, precision and number of threads."""

    token: float
    """Both encoders, a word piece, but for attention between pairs."""
    pair: float
    """Both encoders, a word piece, times the length."""
    score: float
    """Heads, sampling and losses over the vocabulary, a masked position and token of it."""
    update: float
    """Clipping and AdamW, a parameter."""
    sent_byte: float = 0.0
    """Between two processes."""

    def seconds(self, work: Work, parameters: int, processes: int = 1) -> float:
        """A step of ZeRO-1 over several processes, `work` the share of each."""
        computing = work.tokens * (self.token + work.length * self.pair) + work.scores * self.score
        sent = least_traffic(1, parameters, element=4, world_size=processes)
        return computing + parameters * self.update / processes + sent * self.sent_byte


class Cluster(NamedTuple):
    """GPUs as their vendor describes them."""

    gpus: int
    name: str
    flops: float
    """Matrix operations a second in half precision, dense."""
    link: float
    """Bytes a second, one direction, of the slowest link in the ring."""
    source: str


V100_8 = Cluster(8, "V100", 125e12, 150e9, "NVIDIA V100 data sheet: 125 TFLOP/s, NVLink 300 GB/s both directions")
V100_16 = Cluster(16, "V100", 125e12, 12.5e9, "the same; 100 Gbit/s between two machines assumed, the paper names none")
H100_8 = Cluster(
    8, "H100", 989e12, 450e9, "NVIDIA H100 SXM data sheet: 989 TFLOP/s dense, NVLink 900 GB/s both directions"
)


class Share(NamedTuple):
    """An assumed share of the peak, and whose it is."""

    value: float
    source: str


NVIDIA_V100 = Share(0.26, "NVIDIA's ELECTRA-base, length 512, V100: 96 sequences/s")
NVIDIA_A100 = Share(0.19, "NVIDIA's ELECTRA-base, length 512, A100: 171 sequences/s")
GOOGLE_V100 = Share(0.027, "google-research/electra's small, fp32 on a V100: 4 days")
RTX_3090 = Share(0.094, "junnyu's ELECTRA-small, RTX 3090: 2.5 days")
TARGET_BASE = Share(0.5, "this project's aim for base at length 512")
TARGET_SMALL = Share(0.25, "this project's aim for small")
"""The published figures times the operations counted by `estimates.flops_per_token`, over the vendor's peak."""


PAPER_RUNS = (
    ("base", 512, V100_16, NVIDIA_V100),
    ("base", 512, V100_16, TARGET_BASE),
    ("base", 512, V100_8, NVIDIA_V100),
    ("base", 512, H100_8, NVIDIA_A100),
    ("base", 512, H100_8, TARGET_BASE),
    ("small", 128, V100_8, GOOGLE_V100),
    ("small", 128, V100_8, RTX_3090),
    ("small", 512, V100_8, RTX_3090),
    ("small", 128, H100_8, RTX_3090),
    ("small", 128, H100_8, TARGET_SMALL),
)
"""Preset, length, machines, share. The paper: base on 16 V100 in under 5 days, small on 8 in under 3; it names neither
batch size nor length: ELECTRA's (`presets.py`), and for small both lengths."""


class Forecast(NamedTuple):
    """Of a whole run; seconds a step."""

    computing: float
    exchanging: float
    days: float


def forecast(run: RunConfig, parameters: int, length: int, vocabulary: int, cluster: Cluster, share: Share) -> Forecast:
    """`run` in half precision under ZeRO-1 on `cluster`, every sequence full."""
    tokens = run.batch_size * length / cluster.gpus
    operations = tokens * flops_per_token(run.model, run.objective, vocabulary, length)
    computing = max(operations / (cluster.flops * share.value), KERNELS * LAUNCH)
    exchanging = least_traffic(1, parameters, element=2, world_size=cluster.gpus) / cluster.link
    return Forecast(computing, exchanging, run.optim.steps * (computing + exchanging) / DAY)
