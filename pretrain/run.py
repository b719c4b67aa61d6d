"""Pre-train ELECTRA with learned replacement sampling; rerun the same command to resume.

deepspeed --hostfile hostfiles/16v100 pretrain/run.py --preset base
deepspeed --num_gpus 2 pretrain/run.py --preset tiny
python pretrain/run.py --dry_run
"""

from electra_sampler.foundation.command_line import run_script
from pretrain.planning.options import RunOptions


def main(options: RunOptions) -> int:
    from pretrain.training.start import start  # imports PyTorch, which `--help` does without

    return start(options)


if __name__ == "__main__":
    run_script(main)
