"""What places a job on machines: one interface (`scheduler`), SLURM (`slurm`) and Kubernetes behind it, and none; hosts by ssh (`ssh`).

Nothing here starts a rank: torchrun's agents do that, where the scheduler or a person started stoker.
"""
