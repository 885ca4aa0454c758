n_layer, n_head, n_embd, block_size = 1, 2, 32, 16
batch_size = 3
gradient_accumulation_steps = 5
eval_interval, eval_iters, warmup_iters = 6, 1, 4
compile, dtype = False, "float32"
