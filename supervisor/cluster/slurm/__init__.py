"""SLURM support: a process's allocation, host lists, and the SLURM programs (squeue, sbatch, scancel, sacct)."""
