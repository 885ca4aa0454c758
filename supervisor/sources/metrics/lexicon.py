"""Tables of the words used in metric names.

The numbers in `STEP_NAMES` and similar tables are priorities. If a line has two readings of the same kind, the higher priority
wins (`global_step` over `iter` over `batch`). 0 means that the name is a setting or an announcement, never a reading.
"""

from __future__ import annotations

import re


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


EVAL_WORDS = _set(
    "val va vali valid validation validate validating validated eval evaluation evaluate evaluated evaluating test testing dev devel heldout holdout cv"
)
TRAIN_WORDS = _set("train training trained trn tr fit")
SOURCE_WORDS = TRAIN_WORDS | _set(
    "avg avr average averaged tot main mean meter running smooth smoothed ema reduced cur curr current now this step batch iter iteration "
    "micro mini minibatch global overall total sum lm final last trainer metric metrics epoch interval per all raw phase so far rank0 stats stat log for of at the over after with done completed complete finished result results"
)
HIDING_WORDS = _set(
    "best lowest min max minimum std median target prev previous baseline initial init base start end"
)
STEP_NAMES = {
    "step": 8, "steps": 3, "globalstep": 10, "global_step": 10, "num_updates": 10, "updates": 6, "update": 6, "iter": 7,
    "iters": 6, "itrs": 6, "num_iter": 6, "nb_iter": 6, "iteration": 7, "iterations": 6, "it": 6, "batch": 4, "batches": 0, "minibatch": 4, "mb": 0, "tick": 5,
    "trainstep": 8, "steps_train": 8, "current_step": 9, "current_steps": 9, "current_iter": 8,
    "up": 6, "upd": 6, "#": 5, "global_iter": 9, "optimizer_step": 10, "optim_step": 10, "opt_step": 10,
    "global_iteration": 9, "num_steps": 6, "round": 3, "itr": 7, "steps_done": 6,
    "completed_step": 8, "completed_steps": 8, "train_step": 8, "training_step": 8, "train_iter": 7, "train_steps": 6,
    "i": 3, "stp": 6, "training_iteration": 7, "train_iteration": 7, "trained_steps": 8, "trainer_steps_train": 8,
    "training_global_step": 9, "train_global_step": 9, "_step": 9, "optimizer_steps": 10, "n_iter": 6,
    "train_num_updates": 10, "valid_num_updates": 10, "lbatches": 0, "global_batch": 5, "nstep": 7,
    "nupdates": 10, "iteration_step": 7, "iter_step": 7, "s": 2, "current_batch": 4, "acc_iter": 10, "trainer_step": 8, "trainer_global_step": 9, "ite": 6, "train_batch": 4, "iter_train": 8,
}  # fmt: skip
EPOCH_NAMES = {
    "epoch": 8, "epochs": 0, "epch": 8, "ep": 4, "e": 3, "epo": 6, "current_epoch": 8,
    "train_epoch": 8, "training_epoch": 8, "trainer_epoch": 8, "_epoch": 7,
    "eval_epoch": 7, "global_epoch": 8, "valid_epoch": 7, "cur_epoch": 8, "epoch_float": 6, "epoch_out": 8, "outer_epoch": 8,
}  # fmt: skip
LOSS_WORDS = frozenset(
    {"loss", "losses", "trl", "crossentropyloss", "xent", "logloss", "mlogloss", "cost", "objective"}
)
# Units that follow one another, each with a total loss of its own: "Episode 12 loss: 0.3".
ONE_LOSS_EACH = _set(
    "episode game chunk fold trial run attempt generation pass phase rank worker gpu node client time day hour seed shard file section tick cycle kimg era session loss lr"
)
# Names of several held-out sets. The loss of each is a total loss.
HELD_OUT_SETS = _set("set split clean fast other seen unseen matched mismatched small full")
# Losses without "loss" in the name. They count only for a held-out set.
UNCALLED_LOSSES = _set("cross_entropy crossentropy nll")
LOSS_KINDS = _set(
    "ce cross entropy crossentropy nll mlm clm lm ntp causal next token language net network xent softmax binary bce multi class "
    "log logloss mse l1 l2 ctc rnnt transducer sft dpo orpo simpo kto ppo policy pg actor pi grpo rl reinforce contrastive clip infonce "
    "denoising diffusion noise binary softmax sft"
)
LOSS_OF_POLICY = _set("policy pg actor pi ppo")
GRAD_WORDS = _set("grad gradient gradients gnorm grdn gradnorm")
SECOND_WORDS = frozenset({"s", "sec", "secs", "second", "seconds"})
SAMPLE_WORDS = _set(
    "sample samples img imgs image images sequence sequences seq seqs example examples ex exs sent sents sentence sentences item items instance "
    "instances utt utts utterances clip clips frames_ record records row rows graph graphs smp"
)
TOKEN_WORDS = _set("tok toks token tokens word words tk wd")
DEVICE_WORDS = _set("gpu gpus device devices chip chips core rank card worker npu tpu")
OTHER_MEMORY = _set(
    "cpu host ram worker process reserved resv cached cache free total capacity limit disk shm virtual swap available"
)
MEMORY_WORDS = _set("mem memory gpumem gpumemory vram hbm maxmem memallocated maxmemallocated cudamem")
# Scores that only training or evaluation reports, even on a line without loss or step.
SCORES = _set(
    "acc accuracy top1 top5 acc1 acc5 precision recall f1 auc auroc map map50 map75 iou miou dice psnr ssim bleu rouge wer cer ppl perplexity "
    "bpb bpc reward rewards return returns score fps sps fid ndcg mrr hmean kl entropy r2 mae rmse mse episodic elbo "
    "throughput tflops success win ap l1 lpips meteor cider spice chrf hits tps"
)
# Names of settings. A line or block of these names is a dump of the configuration.
SETTINGS = _set(
    "batch_size batchsize train_batch_size eval_batch_size micro_batch_size per_device_train_batch_size per_device_eval_batch_size total_batch_size "
    "device_batch_size seed weight_decay wd_ betas beta1 beta2 adam_beta1 adam_beta2 eps adam_epsilon epsilon num_workers workers epochs num_epochs max_epochs num_train_epochs n_epochs "
    "total_epochs max_steps total_steps num_steps n_steps train_steps num_iters max_iters num_iterations max_iter warmup warmup_steps warmup_ratio warmup_iters lr0 lrf base_lr min_lr max_lr init_lr "
    "initial_lr lr_decay gamma dropout n_layer n_layers num_layers n_head num_heads n_embd hidden_size hidden_dim vocab_size block_size seq_len seq_length max_seq_len max_seq_length "
    "max_length sequence_length gradient_accumulation_steps grad_accum grad_clip max_grad_norm clip_grad grad_clip_norm gradient_clipping optimizer scheduler lr_scheduler save_every eval_every log_interval eval_interval "
    "save_interval log_every_n_steps save_steps eval_steps logging_steps patience num_classes image_size img_size input_size world_size nproc num_gpus ngpus n_gpu rank_ local_rank device fp16 bf16 amp "
    "dtype precision_ num_examples num_samples n_params params num_params parameters trainable project name model dataset mode task resume temperature top_p top_k alpha_ imgsz lora_r lora_alpha "
    "steps_per_epoch warmup_epochs port nodes num_nodes node_rank master_port steps_per_print loss_scale_ initial_scale decay momentum_ hidden heads layers dim depth width "
    "gradient_clip_norm gradient_clip_val gradient_clip clip_grad_norm clip_norm max_gradient_norm "
    "ranks n_ranks nranks num_ranks global_batch micro_batch effective_batch "
    "step_id"  # a scheduler's step
)
# Endings that make a name a setting: "loss_interval", "loss_clip".
NO_READING_BEHIND = _set(
    "interval every after at for of on by to from clip start end begin freq period per window"
)
# Objects whose dotted names are settings: "model.loss", "optimizer.lr".
SETTING_OF = _set("model optimizer optim trainer criterion cfg config args scheduler hparams algo algorithm")
NOT_MEASURED = _set("size retries version num id seed v_num")
# Words that may follow a counter's name: "batch_idx", "iteration number".
NUMBER_WORDS = _set("idx index id number no count nr num")
COUNTED = _set("batch sample token tokens epoch iteration batch_in_epoch sample_in_epoch token_in_epoch in")
AHEAD_OF_COUNTER = _set(
    "start starting started begin beginning processing running step evaluation result completed complete done begin_ after at data global current learning training train trainer optimizer optim eval validate validation val metrics stats finished end "
    "for in on of the results summary test update loss valid iteration_ meta ✨ →"
)
STEP_TIME_NAMES = {
    "time": 3, "timer": 3, "iter_time": 5, "iteration_time": 6, "step_time": 8, "batch_time": 5, "avg_batch_cost": 5, "batch_cost": 5, "train_time": 9,
    "dt": 5, "seconds": 3, "updt_s": 6, "step_avg": 4, "train_step_timing_in_s": 8, "timing_s_step": 8, "time_per_step": 8, "sec_per_step": 7,
    "ms_per_step": 7, "train_iter_time": 5, "iter_t": 5, "time_per_iter": 8, "time_iter": 6, "s_iter": 6, "s_it": 6, "sec_iter": 6, "ms_batch": 7, "ms_step": 7, "step_ms": 8, "step_s": 6, "batch_t": 5,
    "t_step": 5, "sec_batch": 6, "s_step": 6, "s_batch": 6, "sec_step": 6, "time_step": 5, "step_time_s": 8, "step_time_ms": 8, "iter_time_s": 6, "step_time_avg": 5, "ms_it": 6, "ms_iter": 6,
    "step_seconds": 7, "s_stp": 6, "stp_time": 6, "train_step_time": 8, "avg_step_time": 6, "avg_iter_time": 5, "step_duration": 6, "train_batch_cost": 5,
    "global_step_time": 6, "batch_secs": 5, "time_it": 5, "time_batch": 5, "step_time_sec": 8, "sec_it": 6, "timing_step": 6, "perf_time_per_step": 8, "update_s": 6, "s_b": 5, "iter_dt": 6, "bch": 5, "bt": 6, "btime": 6, "batchtime": 5, "itertime": 5, "steptime": 8, "btime_ms": 6, "per_step_time": 8, "per_iter_time": 8,
    "step_latency": 5, "iter_ms": 6, "time_ms": 5, "step_time_seconds": 8, "train_step_timing": 7, "timing_train_step": 7, "timing_step_time": 7,
}  # fmt: skip
EPOCH_TIME_NAMES = _set(
    "epoch_time time_epoch epoch_duration time_per_epoch epoch_time_s epoch_time_sec epoch_sec epoch_secs epoch_seconds train_epoch_time avg_epoch_time s_epoch sec_epoch"
)
IGNORED_TIMES = _set(
    "total_time elapsed elapsed_time wall walltime train_wall wall_time time_elapsed eval_runtime runtime sec_tick sec_kimg total_wall_time time_total_s train_wall_total e2e_train_time"
)
# Words that may occur beside "lr", for what the rate belongs to.
OPTIMIZER_WORDS = _set(
    "lr learning learn rate act optim optimizer group pg param actor opt lrate model adam adamw w l r sgd decoupledadamw decoupled lion g new default params unet policy"
)
# Words that may occur beside "grad norm".
NORM_WORDS = _set("norm act actor optim optimizer clipped clip unclipped l2 all model policy pre before the")
# Words that occur before a number in prose.
PROSE = _set(
    "then now around about only still just and or but usually than was is like nearly almost roughly"
)
# Abbreviations of tokens per second.
TOKEN_NAMES = _set("wps tps train_wps train_tps tgs tok_s toks tokens_s")
# Names of the remaining time: a word of ETA_CORE with only words of ETA_WITH, or a name in ETA_NAMES.
ETA_CORE = _set("eta remaining remain remains left")
ETA_WITH = _set("time estimated est s sec seconds total approx expected training train run h hms until")
ETA_NAMES = _set("required est time_to_finish time_until_done time_to_go time_to_completion")
# Words of other languages and their meanings here. Longer words are tried first.
FOREIGN = {
    "剩余时间": "eta", "預計剩餘": "eta", "预计剩余": "eta", "残り時間": "eta", "남은 시간": "eta", "осталось": "eta",
    "学习率": "lr", "學習率": "lr", "学習率": "lr", "학습률": "lr", "скорость обучения": "lr",
    "损失": "loss", "損失": "loss", "ロス": "loss", "손실": "loss", "потери": "loss", "потеря": "loss", "лосс": "loss", "функция потерь": "loss",
    "pérdida": "loss", "perte": "loss", "verlust": "loss",
    "验证集": "val", "测试集": "test", "训练集": "train", "验证": "val", "驗證": "val", "検証": "val", "검증": "val", "валидация": "val", "validación": "val", "测试": "test", "測試": "test", "テスト": "test",
    "训练": "train", "訓練": "train", "学習": "train", "학습": "train", "обучение": "train", "entrenamiento": "train", "entraînement": "train",
    "平均": "avg", "средняя": "avg", "средний": "avg", "当前": "current", "總": "total", "总": "total", "值": "value",
    "轮次": "epoch", "轮数": "epoch", "轮": "epoch", "輪": "epoch", "エポック": "epoch", "에폭": "epoch", "에포크": "epoch", "эпоха": "epoch", "época": "epoch", "époque": "epoch",
    "步骤": "step", "步数": "step", "步": "step", "迭代": "iter", "ステップ": "step", "반복": "iter", "스텝": "step", "шаг": "step", "итерация": "iter", "paso": "step",
    "梯度范数": "grad norm", "显存": "vram", "批次": "batch",
}  # fmt: skip


def _foreign(words: frozenset[str]) -> str:
    """Build a pattern of the foreign equivalents of `words`. Scripts without spaces need no word boundary."""
    found = [word for word, meant in FOREIGN.items() if meant in words]
    return "|".join(sorted(found, key=len, reverse=True))


EVALUATES = re.compile(
    rf"(?<![\w./@-])(?:val|valid|validate|validating|validation|eval|evals|evaluate|evaluation|evaluating|test|testing|dev|heldout|held-out|(?-i:CV))(?![\w/@-]|\.\S|\s*=|\s*:\s*(?:n/a|none|nan|-)\b)"
    # "Labeled Target set: Average loss: …": a named set other than the training set.
    rf"|(?<!train )(?<!training )(?<!data )(?<![\w./@-])set:(?=\s)|{_foreign(EVAL_WORDS)}",
    re.IGNORECASE,
)
TRAINS = re.compile(rf"(?<![\w./@-])(?:train|training)(?![\w./@-])|{_foreign(TRAIN_WORDS)}", re.IGNORECASE)

# A tag with a set's name as part of a word: "[Diff-Val(Test-Normal)]".
TAG = re.compile(
    r"\[(?![^\]]*train)[^\]=:]*(?<![A-Za-z0-9])(?:val|valid(?:ation)?|test|eval(?:uation)?|dev)(?![A-Za-z0-9])[^\]=:]*\]",
    re.IGNORECASE,
)
