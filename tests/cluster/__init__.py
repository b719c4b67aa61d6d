"""Claims about several machines: real launchers and Slurm, with network namespaces as hosts."""
