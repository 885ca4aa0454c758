"""Place jobs on machines via a scheduler interface (`scheduler`; `slurm` for SLURM, Kubernetes or none) or ssh (`ssh`).

Nothing here starts a rank. torchrun's agents do, on the nodes where the scheduler or the user started stoker.
"""
