"""Predicts the time of a step and of whole runs, in one of two ways.

On a machine where each kind of work was timed separately (`bench/scaling.py`), a step is the sum of those times. For a
GPU that was not available, computing takes the matrix operations divided by an assumed share of the vendor's peak, but
at least the time to launch the kernels. Communication takes the bytes divided by the vendor's link bandwidth; nothing
overlaps.
"""

from typing import NamedTuple

from bench.traffic import least_traffic
from data_prep.masking import mask_size
from pretrain.config import RunConfig
from pretrain.training.estimates import flops_per_token

DAY = 86_400.0
KERNELS = 3_247
"""PyTorch operations of a whole step of the small preset under the engine: 16 x 128, bf16, ZeRO-1, one process.

Counted on a CPU by `bench/engine.py` (views excluded), less the operations that only CPUs need
(`pretrain/model/cpu_ops.py`): sums in half precision, and dropout's random words."""
LAUNCH = 5e-6
"""Assumed seconds to launch a kernel in eager mode. CUDA graphs and fused kernels take less."""


class Work(NamedTuple):
    """Size of one step in one process."""

    tokens: int
    length: int
    vocabulary: int

    @property
    def scores(self) -> float:
        """Scores computed by the heads: masked positions times vocabulary size."""
        return self.tokens / self.length * float(mask_size(self.length)) * self.vocabulary


class Costs(NamedTuple):
    """Seconds per unit of each kind of work, for one machine, model, precision and number of threads."""

    token: float
    """Both encoders without attention, per word piece."""
    pair: float
    """Attention in both encoders, per pair of word pieces."""
    score: float
    """Heads, sampling and losses, per masked position and vocabulary entry."""
    update: float
    """Clipping and AdamW, per parameter."""
    sent_byte: float = 0.0
    """Communication between processes, per byte sent."""

    def seconds(self, work: Work, parameters: int, processes: int = 1) -> float:
        """Returns the seconds of a ZeRO-1 step of `processes` processes that do `work` each."""
        computing = work.tokens * (self.token + work.length * self.pair) + work.scores * self.score
        sent = least_traffic(1, parameters, element=4, world_size=processes)
        return computing + parameters * self.update / processes + sent * self.sent_byte


class Cluster(NamedTuple):
    """GPUs as their vendor describes them."""

    gpus: int
    name: str
    flops: float
    """Dense half-precision FLOP/s."""
    link: float
    """Bytes per second in one direction over the slowest link of the ring."""
    source: str


V100_8 = Cluster(8, "V100", 125e12, 150e9, "NVIDIA V100 data sheet: 125 TFLOP/s, NVLink 300 GB/s both directions")
V100_16 = Cluster(16, "V100", 125e12, 12.5e9, "as V100_8; 100 Gbit/s between two hosts is assumed, not in the paper")
H100_8 = Cluster(
    8, "H100", 989e12, 450e9, "NVIDIA H100 SXM data sheet: 989 TFLOP/s dense, NVLink 900 GB/s both directions"
)


class Share(NamedTuple):
    """An assumed share of the peak, with its source."""

    value: float
    source: str


NVIDIA_V100 = Share(0.26, "NVIDIA's ELECTRA-base, length 512, V100: 96 sequences/s")
NVIDIA_A100 = Share(0.19, "NVIDIA's ELECTRA-base, length 512, A100: 171 sequences/s")
GOOGLE_V100 = Share(0.027, "google-research/electra's small, fp32 on a V100: 4 days")
RTX_3090 = Share(0.094, "junnyu's ELECTRA-small, RTX 3090: 2.5 days")
TARGET_BASE = Share(0.5, "this project's aim for base at length 512")
TARGET_SMALL = Share(0.25, "this project's aim for small")
"""Published throughput times the FLOPs by `estimates.flops_per_token`, divided by the vendor's peak."""


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
"""Preset, length, cluster, share. The paper trained base on 16 V100 in under 5 days and small on 8 in under 3. It gives
neither batch size nor length, so ELECTRA's are used (`presets.py`), and for small both lengths."""


class Forecast(NamedTuple):
    """Predicted seconds per step and days for a whole run."""

    computing: float
    exchanging: float
    days: float


def forecast(run: RunConfig, parameters: int, length: int, vocabulary: int, cluster: Cluster, share: Share) -> Forecast:
    """Predicts `run` in half precision with ZeRO-1 on `cluster`, all sequences at full length."""
    tokens = run.batch_size * length / cluster.gpus
    operations = tokens * flops_per_token(run.model, run.objective, vocabulary, length)
    computing = max(operations / (cluster.flops * share.value), KERNELS * LAUNCH)
    exchanging = least_traffic(1, parameters, element=2, world_size=cluster.gpus) / cluster.link
    return Forecast(computing, exchanging, run.optim.steps * (computing + exchanging) / DAY)
