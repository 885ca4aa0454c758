"""Place jobs on machines: one interface (`scheduler`) to SLURM (`slurm`), Kubernetes or no scheduler; hosts by ssh (`ssh`).

No code here starts a rank. torchrun's agents do, on the nodes where the scheduler or the user started stoker.
"""
