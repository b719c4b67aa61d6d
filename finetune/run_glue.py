"""Fine-tune an exported discriminator, or a stock Hugging Face ELECTRA, on GLUE.

    deepspeed finetune/run_glue.py --model OUT --task CoLA RTE --data_dir GLUE
    python finetune/run_glue.py --model OUT --task all --data_dir hub

One launch runs every task and seed, one after another; several at once, such as a Slurm array, share them. A finished
run is one line of OUTPUT/results.jsonl; the same command runs only what is missing. Tables: finetune/report.py.
"""

from electra_sampler.foundation.command_line import run_script
from finetune.config import GlueOptions


def main(options: GlueOptions) -> None:
    from finetune.glue.job import load
    from finetune.running.run_list import launch

    launch(options, load)


if __name__ == "__main__":
    run_script(main)
