# ruff: noqa: INP001 - a preset: parsed by stoker, never imported
"""Two GPUs of 32 GB, aggressive: about 28–30 GB, 90 % of each (expected, not measured here)."""

nproc_per_node = 2
expected_memory_gib = 28.8  # of a GPU: 90 % of 32; at the end stoker says where it was far from that

depth = 20
device_batch_size = 14  # samples a rank holds at once
total_batch_size = 86016  # tokens of a step: 14 × 3072 × 2 ranks
max_seq_len = 3072

num_iterations = 2000
eval_every = 250
save_every = 250
log_interval = 10
learning_rate = 6e-4
warmup_steps = 100
mixed_precision = True
