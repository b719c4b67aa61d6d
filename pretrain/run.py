"""Pre-train ELECTRA with learned replacement sampling; rerun the same command to resume.

deepspeed --hostfile hostfiles/16v100 pretrain/run.py --preset base
deepspeed --num_gpus 2 pretrain/run.py --preset tiny
python pretrain/run.py --dry_run
"""

from foundation.command_line import run_script
from pretrain.job.launcher import adopt_slurm
from pretrain.planning.hosts import require_launch
from pretrain.planning.options import RunOptions


def main(options: RunOptions) -> int:
    adopt_slurm()
    if options.hostfile and not (options.dry_run or options.list_settings):
        require_launch(options.hostfile)
    from pretrain.planning.plan import list_settings, make_plan

    if options.list_settings:
        print(list_settings(options))
        return 0
    plan = make_plan(options)
    if options.dry_run:
        from pretrain.planning.plan_warnings import dry_run

        dry_run(plan)
        return 0
    from pretrain.training.train import train_rank

    return train_rank(plan)


if __name__ == "__main__":
    run_script(main)
