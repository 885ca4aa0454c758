"""Lines, arguments and variables that look a little like secrets and hold none: not one of them may be changed."""

from __future__ import annotations

from typing import Final

LINES: Final = (
    # names that hold "key", "token", "pass", "auth" and mean something else
    '"pad_token": "<pad>",', '"eos_token": "</s>", "bos_token": "<s>"', "pad_token=<|endoftext|>", "token_type_ids: torch.Size([8, 512])",
    "num_tokens=1048576", "tokens: 2.1B", "tokens/s: 123456.7", "token: 4096", "total_tokens=2_097_152 | tgs 3412", "max_tokens=2048",
    "tokens_per_sec 12345.6, loss 2.31", "Setting `pad_token_id` to `eos_token_id`:128001 for open-end generation.",
    "Unexpected token: }", "JSONDecodeError: Unexpected token '<' at position 0", "special tokens have been added in the vocabulary",
    "tokenizer: Qwen2TokenizerFast", "tokenizer=meta-llama/Meta-Llama-3-8B", "image_token_index: 32000", "mask_token: [MASK]",
    "decoder_start_token_id=2", "forced_bos_token_id: 250004", "trigger_token=sks", "prompt tokens: 812, completion tokens: 33",
    "passes=3", "forward pass: 12.3 ms", "backward_pass=31.2ms", "single_pass=True", "bypass_sdma: 0", "compass=north", "n_passes: 4",
    "pass: 3/10", "two_pass = 1", "pass@1: 0.412 pass@10: 0.733", "pass_rate=0.91",
    "KeyError: 'model.layers.0.self_attn.q_proj.weight'", 'KeyError: "labels"', "key: model.embed_tokens.weight", "missing key: lm_head.weight",
    'Unexpected key(s) in state_dict: "module.fc.weight", "module.fc.bias".', "Missing keys: ['classifier.weight']", "sort_key=length",
    "key_padding_mask: torch.bool", "num_key_value_heads: 8", "key=input_ids", "cache_key=3f2a9c0d41b87e66", "group_by_key=task", "text_key: content",
    "primary key: id", "query/key/value: 4096x1024", "qk_norm key_dim=128", "kv_key: layers.12.attention.wk", "keyboard interrupt", "monkey=1",
    "author=Kim", "authors: Kim et al.", "authentic=True", "auth: disabled", "Authorization: required", "auth=none", "oauth_enabled: false",
    "signature=forward(self, x)", "signal 9 (SIGKILL) received by PID 31337", "sigma: 0.02", "sig=11", "signature: (int) -> float",
    "secret: false", "credentials: none", "Invalid credentials: check your login", "password: incorrect", "Enter password: ",
    'FATAL: password authentication failed for user "kim"', "OSError: invalid password: please try again", "api_key=None", "api_key: null",
    "api_key=$WANDB_API_KEY", "token=${HF_TOKEN}", "password: ${DB_PASSWORD}", 'api_key=os.environ["X"]', "token=args.hub_token", "api_key=api_key",
    "token=hf_token", "password=password", "api_key: <your key here>", "token: ***", "HF_TOKEN is not set", "Set HF_TOKEN to authenticate.",
    "No API key configured. Use `wandb login` to log in.", "wandb: Currently logged in as: kim (acme). Use `wandb login --relogin` to force relogin",
    "bearer authentication is required", "Basic configuration loaded", "cookie jar is empty", "cookies: enabled",
    "secret_name: hf-credentials", "password_file: /run/secrets/db", "credentials_path=/etc/gcp/key.json", "GOOGLE_APPLICATION_CREDENTIALS=/etc/gcp.json",
    "ssh_key_file=~/.ssh/id_ed25519", "key_file: ./certs/server.pem", "token_url: https://auth.example.com/token", "auth_type=basic",
    # hashes, ids, digests, sizes
    "commit 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b", "git commit: 5c3f1e2", "HEAD is now at 5c3f1e2 keeper: fix", "sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "image docker.io/pytorch/pytorch@sha256:4c7f4e1f9a7d3b0e8b6a5c2d1e0f9a8b7c6d5e4f3a2b1c0d9e8f7a6b5c4d3e2f", 'etag: "d41d8cd98f00b204e9800998ecf8427e"',
    "wandb: Syncing run brave-otter-12 (id 3k9x1v2b)", "wandb: View run at https://wandb.ai/acme/proj/runs/3k9x1v2b", "run_id=20261122-1412-brave-otter",
    "uuid 550e8400-e29b-41d4-a716-446655440000", "GPU-5a1e7c2b-3f4d-4b6a-9c8d-7e6f5a4b3c2d", "rdzv_id=8c1b3f2e-77aa-4c1d-9d2e-3f4a5b6c7d8e",
    "nccl unique id 0x7f3a9c0d41b87e66", "addr 0x00007f8b4c0012a0", "fingerprint a1b2c3d4e5f60718", "md5=5d41402abc4b2a76b9719d911017c592",
    "cache key sha256:9b74c9897bac770ffc029102a200c5de", "inductor cache hit: fxgraph key fk3jq7w5xz2l4m6n", "--world_info=eyJsb2NhbGhvc3QiOiBbMCwgMSwgMiwgM119",
    # URLs and addresses
    "https://huggingface.co/meta-llama/Meta-Llama-3-8B/resolve/main/config.json", "https://pytorch.org/docs/stable/elastic/errors.html",
    "tcp://10.0.0.1:29500", "http://localhost:6006/?tab=scalars&run=3", "https://host:8080/@scope/package", "git@github.com:acme/x.git",
    "ssh://git@github.com/acme/x.git", "s3://bucket/data@v2/shard-00001.tar", "hf://datasets/acme/x@main/train.jsonl", "user@host:/data/x",
    "https://registry.npmjs.org/@types/node", "kim@example.com", "https://arxiv.org/abs/2106.09685", "redis://cache:6379/0", "postgres://db:5432/x",
    "https://medium.com/@kim/post-1", "gs://bucket/checkpoints/step-1000", "http://[::1]:29500/x?page=2&sort=asc", "https://api.example.com/v1/models?limit=10&page_token=3",
    "[W socket.cpp:697] [c10d] The client socket has failed to connect to [node01]:29500 (errno: 111 - Connection refused).",
    # training logs and stack traces
    "step 1200 | loss 2.3137 | lr 3.00e-04 | grad_norm 0.91 | tok/s 182,331", "{'loss': 1.234, 'grad_norm': 0.5, 'learning_rate': 5e-05, 'epoch': 0.3}",
    "Epoch 3:  45%|████      | 450/1000 [01:12<01:28,  6.22it/s, loss=2.31]", '  File "/home/kim/train.py", line 81, in main', "    loss = model(input_ids, key_padding_mask=mask)",
    "    tokens = tokenizer(batch, padding='max_length', max_length=512)", "    key, query = self.wk(x), self.wq(x)", "    token = next(iterator)",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.15 GiB of which 3.12 MiB is free.",
    "RuntimeError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1333, unhandled system error, NCCL version 2.20.5",
    "[rank3]:[E ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1204, OpType=ALLREDUCE)",
    "node01:3121:3121 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>", "ValueError: too many values to unpack (expected 2)",
    "ImportError: cannot import name 'get_token' from 'huggingface_hub'", "AttributeError: 'Tokenizer' object has no attribute 'pad_token'",
    "TypeError: forward() got an unexpected keyword argument 'token_type_ids'", "TypeError: __init__() got an unexpected keyword argument 'use_auth_token'",
    "FutureWarning: The `use_auth_token` argument is deprecated; use `token` instead.", "loading weights file model-00001-of-00030.safetensors",
    "/mnt/data1/Llama3Checkpoints/step1000/modelstates/layer12weights", "checkpoint saved to /ckpt/run-7/step_001200/mp_rank_00_model_states.pt",
    "Some weights of LlamaForSequenceClassification were not initialized: ['score.weight']", "class Qwen2VLForConditionalGeneration(PreTrainedModel):",
    "task-sk-learn-baseline finished", "sk-learn-random-forest is slow", "hf_transfer enabled", "hf_model_name_or_path=gpt2", "as-is", "secret_santa = 3",
    "mysql: [Warning] Using a password on the command line interface can be insecure.", "docker run -p 8080:80 image", "ssh -p 22 host uptime",
    "python train.py -p 0.1", "zip -r out.zip logs", "curl -s https://example.com/x -o y", "unzip data.zip -d data", "Starting redis-cli: ok",
    "2026-11-22 14:12:01,123 INFO [trainer] saved", "[2026-11-22 14:12:01] [INFO] [real_accelerator.py:219:get_accelerator] Setting ds_accelerator to cuda",
    "Namespace(lr=0.0003, key='text', token_dropout=0.1, pad_token_id=0)", "max_position_embeddings: 4096", "rope_scaling: {'type': 'yarn', 'factor': 4.0}",
    "Secrets of the deep: a dataset", "license: apache-2.0", "version=2.13.0+cpu", "CUDA_VISIBLE_DEVICES=0,1,2,3", "NCCL_SOCKET_IFNAME=^lo,docker0",
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "TOKENIZERS_PARALLELISM=false", "MASTER_ADDR=10.0.0.1 MASTER_PORT=29500",
    "SSH_AUTH_SOCK=/tmp/ssh-XXXX/agent.1", "PWD=/home/kim/project", "-----BEGIN CERTIFICATE-----", "-----BEGIN PUBLIC KEY-----",
)  # fmt: skip

ARGV: Final = (
    ("train.py", "--tokenizer", "gpt2", "--max-tokens", "2048", "--key-padding", "left", "--keyboard", "qwerty"),
    ("train.py", "--text_key", "content", "--json-keys", "text", "label", "--sort-key", "length"),
    ("train.py", "-p", "0.1", "--dropout", "0.1", "--passes", "3", "--num-passes=2"),
    ("train.py", "--pad_token", "<pad>", "--placeholder_token", "<cat-toy>", "--initializer_token", "toy"),
    ("train.py", "--add_bos_token", "true", "--use_auth_token", "--push_to_hub", "--token", "--lr", "3e-4"),
    ("train.py", "--tokenizer-path=/models/llama", "--token-dropout", "0.1", "--image_token_id=32000"),
    ("train.py", "--author", "kim", "--auth", "none", "--auth-type=basic", "--signature", "forward"),
    ("train.py", "--credentials", "/etc/gcp.json", "--key_file=./k.pem", "--api-key", "$API_KEY", "--token=${TOKEN}"),
    ("train.py", "--commit", "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b", "--run_id=3k9x1v2b", "--dataset-key=train"),
    ("train.py", "optimizer.key=adam", "data.key=image", "+model.token_dim=512", "trainer.max_tokens=4096", "~callbacks"),
    ("accelerate", "launch", "--main_process_port", "29501", "t.py", "--config", "c.yaml"),
    ("docker", "run", "-p", "8080:80", "-e", "NCCL_DEBUG=INFO", "image"),
    ("ssh", "-p", "22", "host"), ("sshpass", "-p", "22"), ("mysql", "-u", "root", "-P", "3306"), ("zip", "-r", "out.zip", "logs"),
    ("deepspeed", "--world_info=eyJsb2NhbGhvc3QiOiBbMCwgMSwgMiwgM119", "t.py"),
    ("python", "-c", "import torch; print(torch.__version__)"), ("bash", "-c", "python t.py --key text && echo pass"),
    ("t.py", "--data", "https://huggingface.co/datasets/acme/x/resolve/main/train.parquet?download=true"),
    ("t.py", "--model", "stabilityai/stable-diffusion-3.5-large", "--revision", "5c3f1e2"),
)  # fmt: skip

ENV: Final = (
    ("PATH", "/usr/bin:/bin"), ("PWD", "/home/kim"), ("OLDPWD", "/"), ("SSH_AUTH_SOCK", "/tmp/ssh-x/agent.1"), ("TOKENIZERS_PARALLELISM", "false"),
    ("GOOGLE_APPLICATION_CREDENTIALS", "/etc/gcp.json"), ("HF_TOKEN_PATH", "/home/kim/.hf"), ("NCCL_DEBUG", "INFO"), ("KEYBOARD", "us"),
    ("LESSKEY", "/etc/less"), ("XAUTHORITY", "/home/kim/.Xauthority"), ("AUTHOR", "kim"), ("AWS_PROFILE", "dev"), ("MAX_TOKENS", "4096"),
    ("PASSES", "3"), ("USE_AUTH_TOKEN", "true"), ("WANDB_PROJECT", "x"), ("HTTP_PROXY", "http://proxy:3128"), ("GIT_AUTHOR_NAME", "Kim"),
    ("OMP_NUM_THREADS", "8"), ("GPG_KEY", "E3FF2839C048B25C084DEBE9B26995E310250568"), ("API_KEY", ""), ("SORT_KEY", "length"), ("X", "3e-4"),
)  # fmt: skip
