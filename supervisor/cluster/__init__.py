"""What places a job on machines: one interface (`scheduler`), SLURM behind it (`slurm`), and none.

Nothing here starts a rank: torchrun's agents do that, where the scheduler or a person started stoker.
"""
