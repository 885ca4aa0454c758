# ruff: noqa: INP001 - a preset: parsed by stoker, never imported
"""Two GPUs of 32 GB, balanced: about 20–22 GB, 65 % of each (expected, not measured here)."""

nproc_per_node = 2
expected_memory_gib = 20.8  # of a GPU: 65 % of 32; at the end stoker says where it was far from that

depth = 16
device_batch_size = 12  # samples a rank holds at once
total_batch_size = 49152  # tokens of a step: 12 × 2048 × 2 ranks
max_seq_len = 2048

num_iterations = 2000
eval_every = 250
save_every = 250
log_interval = 10
learning_rate = 6e-4
warmup_steps = 100
mixed_precision = True
