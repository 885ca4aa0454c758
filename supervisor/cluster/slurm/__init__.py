"""SLURM: the allocation that a process is in, lists of host names, and its programs (squeue, sbatch, scancel, sacct)."""
