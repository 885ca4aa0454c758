# ruff: noqa: INP001 - a preset: parsed by stoker, never imported
"""Two GPUs of 32 GB, conservative: about 15–16 GB, 48 % of each (expected, not measured here)."""

nproc_per_node = 2
expected_memory_gib = 15.4  # of a GPU: 48 % of 32; at the end stoker says where it was far from that

depth = 12
device_batch_size = 8  # samples a rank holds at once
total_batch_size = 24576  # tokens of a step: 8 × 1536 × 2 ranks
max_seq_len = 1536

num_iterations = 2000
eval_every = 250
save_every = 250
log_interval = 10
learning_rate = 6e-4
warmup_steps = 100
mixed_precision = True
