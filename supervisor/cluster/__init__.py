"""Place jobs on machines: a common interface (`scheduler`) to SLURM (`slurm`), Kubernetes or none, and ssh hosts (`ssh`).

Nothing here starts a rank. torchrun's agents do, on the nodes where the scheduler or the user started stoker.
"""
