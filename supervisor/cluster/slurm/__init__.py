"""SLURM: the allocation of a process, lists of host names, and SLURM's programs (squeue, sbatch, scancel, sacct)."""
