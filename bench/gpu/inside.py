"""The parts of `bench/gpu.py` that run in a process of their own, by name."""

from bench.gpu.parts import GpuOptions


def run_inside(name: str, options: GpuOptions) -> int:
    """Runs a part in this process; returns 1 if it failed. What it has found is kept in its file all along."""
    kind, _, shape = name.partition(" ")
    product = options.product(name)
    match kind:
        case "bits" | "zero":
            from bench.gpu.runs import bits, zero

            return bits(options, shape, product) if kind == "bits" else zero(options, product)
        case "rates" | "ablation":
            from bench.gpu.ablation import ablation, rates

            return rates(options, product) if kind == "rates" else ablation(options, shape, product)
        case "profile":
            from bench.gpu.profiling import run_profile

            return run_profile(options, shape, product)
        case "training":
            from bench.gpu.runs import training

            return training(options, shape, product)
        case "study":
            from bench.gpu.study_block import study_block

            return study_block(options, product)
    raise AssertionError(name)
