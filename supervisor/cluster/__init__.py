"""Places jobs on machines: one interface (`scheduler`) to SLURM (`slurm`), Kubernetes or no scheduler; hosts by ssh (`ssh`).

Nothing here starts a rank: torchrun's agents do that, where the scheduler or a person started stoker.
"""
