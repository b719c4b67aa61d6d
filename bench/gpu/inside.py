"""The parts of `bench/gpu.py` that run in their own process, by name."""

from bench.gpu.parts import GpuOptions


def run_inside(name: str, options: GpuOptions) -> int:
    """Runs a part in this process; returns 1 if it failed. It saves results as they come in."""
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
