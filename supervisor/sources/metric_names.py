"""What the names in training logs mean: a table of words, not of frameworks.

A name is split into words (`train_loss`, `Loss/train/total`, `TrainLoss` alike). Words that only say where a
number comes from (train, mean, global) are set aside; what is left decides. So `reduced_train_loss` is a loss
because nothing but "loss" is left, and `packet loss` is none because "packet" is.
"""

from __future__ import annotations

import re
from typing import NamedTuple

STEP, TOTAL_STEPS, EPOCH, TOTAL_EPOCHS = "step", "total_steps", "epoch", "total_epochs"
LOSS, VAL_LOSS, LR, GRAD_NORM = "loss", "val_loss", "lr", "grad_norm"
TOKENS, SAMPLES, STEP_TIME, MFU = "tokens_per_sec", "samples_per_sec", "step_time_s", "mfu"
MEMORY, ETA = "memory_used_bytes", "eta_s"
CANONICAL = (
    STEP, TOTAL_STEPS, EPOCH, TOTAL_EPOCHS, LOSS, VAL_LOSS, LR, GRAD_NORM, TOKENS, SAMPLES, STEP_TIME, MFU,
    MEMORY, ETA,
)  # fmt: skip


def is_score(name: str) -> bool:
    """Whether a name is one of a quality that only training or evaluation reports."""
    lower = name.lower()
    return not SCORES.isdisjoint(words_of(name)) or lower.startswith("map") or lower in SCORES


class Meaning(NamedTuple):
    """What a name stands for. `field` is canonical, "" for a name of its own, None for nothing to chart.

    Of several readings with one field the highest `rank` wins. `is_eval`: the name itself says held-out.
    `weak`: only believed on a line that shows other signs of training.
    """

    field: str | None
    rank: int = 5
    is_eval: bool = False
    weak: bool = False


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


EVAL_WORDS = _set(
    "val valid validation validate validating validated eval evaluation evaluate evaluating test testing dev devel heldout holdout cv"
)
TRAIN_WORDS = _set("train training trn tr fit")
_SOURCE = TRAIN_WORDS | _set(
    "avg avr average averaged mean meter running smooth smoothed ema reduced cur curr current now this step batch iter iteration "
    "micro global overall total sum lm final last trainer metric metrics epoch interval per raw rank0 stats stat log for of at the after"
)
_HIDE = _set("best min max minimum std median target prev previous baseline initial init base start end")

_STEP_WORDS = {
    "step": 8, "steps": 3, "globalstep": 10, "global_step": 10, "num_updates": 10, "updates": 6, "update": 6, "iter": 7,
    "iters": 6, "iteration": 7, "iterations": 6, "it": 6, "batch": 4, "batches": 0, "minibatch": 4, "mb": 0, "tick": 5,
    "trainstep": 8, "step_num": 8, "steps_train": 8, "current_step": 9, "current_steps": 9, "current_iter": 8,
    "up": 6, "upd": 6, "#": 5, "global_iter": 9, "optimizer_step": 10, "optim_step": 10, "opt_step": 10, "iter_num": 8,
    "iteration_num": 8, "global_iteration": 9, "num_steps": 6, "round": 3, "itr": 7, "step_count": 7, "steps_done": 6,
    "completed_step": 8, "completed_steps": 8, "train_step": 8, "training_step": 8, "train_iter": 7, "train_steps": 6,
    "步": 8, "迭代": 7, "步数": 8, "training_iteration": 7, "train_iteration": 7, "trained_steps": 8,
    "training_global_step": 9, "train_global_step": 9, "_step": 9, "optimizer_steps": 10, "n_iter": 6,
    "train_num_updates": 10, "valid_num_updates": 10, "lbatches": 0, "global_batch": 5, "iter_count": 7, "nstep": 7,
    "trainer_step": 8, "trainer_global_step": 9, "ite": 6, "step_no": 7, "train_batch": 4, "iter_train": 8,
}  # fmt: skip
_EPOCH_WORDS = {
    "epoch": 8, "epochs": 0, "epch": 8, "ep": 4, "e": 3, "epo": 6, "轮": 8, "epoch_num": 7, "current_epoch": 8,
    "train_epoch": 8, "training_epoch": 8, "trainer_epoch": 8, "epoch_id": 7, "epoch_idx": 7, "_epoch": 7, "epoch_no": 7,
    "eval_epoch": 7, "global_epoch": 8, "valid_epoch": 7, "轮次": 8, "ep_num": 5, "cur_epoch": 8, "epoch_float": 6,
}  # fmt: skip
_LOSS_CORE = frozenset({"loss", "losses", "损失", "crossentropyloss", "xent", "logloss", "cost", "objective"})
# What may stand beside "loss" and still leave it the whole: kinds of the one objective of a language model or classifier.
_LOSS_KIND = _set(
    "ce cross entropy crossentropy nll mlm clm lm ntp causal next token language model xent softmax binary bce multi class "
    "log logloss mse l1 l2 ctc rnnt transducer sft dpo orpo simpo kto ppo policy pg actor pi grpo reinforce contrastive clip infonce "
    "denoising diffusion noise binary softmax sft"
)
_LOSS_RL = _set("policy pg actor pi ppo")
_GRAD = _set("grad gradient gradients gnorm grdn gradnorm")
_SECOND = frozenset({"s", "sec", "secs", "second", "seconds"})
_SAMPLE_UNIT = _set(
    "sample samples img imgs image images sequence sequences seq seqs example examples ex exs sent sents sentence sentences item items instance "
    "instances utt utts utterances clip clips frames_ record records row rows graph graphs smp"
)
_TOKEN_UNIT = _set("tok toks token tokens word words tk wd")
_PER_DEVICE = _set("gpu gpus device devices chip chips core rank card worker npu tpu")
_NOT_PROCESS = _set(
    "cpu host ram worker process reserved cached cache free total capacity limit disk shm virtual swap available"
)
_MEM = _set("mem memory gpumem gpumemory vram hbm 显存 maxmem memallocated maxmemallocated cudamem")
# Scores that say by themselves that a line reports on training, even without loss or step.
SCORES = _set(
    "acc accuracy top1 top5 acc1 acc5 precision recall f1 auc auroc map map50 map75 iou miou dice psnr ssim bleu rouge wer cer ppl perplexity "
    "bpb bpc reward rewards return returns score fps sps fid ndcg mrr hmean kl entropy r2 mae rmse mse episodic elbo "
    "throughput tflops success win ap l1 lpips meteor cider spice chrf hits tps"
)
# Names of settings: a line or block of these is a dump of the configuration.
SETTINGS = _set(
    "batch_size batchsize train_batch_size eval_batch_size micro_batch_size per_device_train_batch_size per_device_eval_batch_size total_batch_size "
    "device_batch_size seed weight_decay wd_ betas beta1 beta2 adam_beta1 adam_beta2 eps adam_epsilon epsilon num_workers workers epochs num_epochs max_epochs num_train_epochs n_epochs "
    "total_epochs max_steps total_steps num_steps n_steps train_steps num_iters max_iters num_iterations max_iter warmup warmup_steps warmup_ratio warmup_iters lr0 lrf base_lr min_lr max_lr init_lr "
    "initial_lr lr_decay gamma dropout n_layer n_layers num_layers n_head num_heads n_embd hidden_size hidden_dim vocab_size block_size seq_len seq_length max_seq_len max_seq_length "
    "max_length sequence_length gradient_accumulation_steps grad_accum grad_clip max_grad_norm clip_grad grad_clip_norm gradient_clipping optimizer scheduler lr_scheduler save_every eval_every log_interval eval_interval "
    "save_interval log_every_n_steps save_steps eval_steps logging_steps patience num_classes image_size img_size input_size world_size nproc num_gpus ngpus n_gpu rank_ local_rank device fp16 bf16 amp "
    "dtype precision_ num_examples num_samples n_params params num_params parameters trainable project name model dataset data mode task resume temperature top_p top_k alpha_ imgsz lora_r lora_alpha "
    "steps_per_epoch warmup_epochs port nodes num_nodes node_rank master_port steps_per_print loss_scale_ initial_scale decay momentum_ hidden heads layers dim depth width"
)

_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SPLIT = re.compile(r"[\s_/.\-|:()\[\]'\"]+")


def words_of(name: str) -> list[str]:
    """The words of a name, in lower case."""
    if not (name.isupper() or name.islower()):
        name = _CAMEL.sub("_", name)
    return [word for word in _SPLIT.split(name.lower()) if word]


def meaning(name: str) -> Meaning:
    """What a name of a number stands for."""
    words = words_of(name)
    if not words:
        return Meaning(None)
    joined = "_".join(words)
    held_out = not EVAL_WORDS.isdisjoint(words)
    if joined in {"total_steps", "max_steps", "total_iters", "max_iters", "total_iterations"}:
        return Meaning(TOTAL_STEPS, 1, weak=True)
    if joined in SETTINGS:
        return Meaning(None)
    lower = name.lower()
    if "损失" in lower or "学习率" in lower:
        held_out = held_out or "验证" in lower or "测试" in lower
        return Meaning(LR, 9) if "学习率" in lower else Meaning(VAL_LOSS if held_out else LOSS, 9, held_out)
    if words[-1] in _NOT_MEASURED or ("time/" in lower and words[-1] in _COUNTED):
        return Meaning(None)
    rest = [word for word in words if word not in _SOURCE and word not in EVAL_WORDS and not word.isdigit()]
    if rest[-1:] == ["value"]:
        rest.pop()
    found = (
        _counter(joined, words)
        or _loss(words, rest, held_out, is_part="loss/" in lower and words[-1] != "total")
        or _rate_of_learning(joined, words, rest)
        or _norm(words, rest)
        or _throughput(joined, words)
        or _memory(joined, words)
        or _time(joined, words)
    )
    if found is not None:
        if held_out and found.field is not None and not found.is_eval:
            return found._replace(is_eval=True)
        return found
    if "mfu" in words or "bf16mfu" in words:
        return Meaning(MFU, 9 if words[-1] == "mfu" else 5)
    return Meaning("", is_eval=held_out, weak=not is_score(name))


def _counter(joined: str, words: list[str]) -> Meaning | None:
    if not (_HIDE - {"end", "start", "initial"}).isdisjoint(words):
        return None
    for table, field in ((_STEP_WORDS, STEP), (_EPOCH_WORDS, EPOCH)):
        rank = table.get(joined)
        if rank is None and len(words) > 1 and words[0] in EVAL_WORDS | TRAIN_WORDS:
            rank = table.get("_".join(words[1:]))
        if rank is None and len(words) > 1 and words[-1] in {"step", "epoch", "iteration"}:
            # A verb or noun before it: "completed step", "after step", "Global step".
            ahead = set(words[:-1])
            placed = not ahead & {"loss"} or ahead & {"at", "after", "for", "in"}
            rank = table.get(words[-1]) if placed and ahead <= _AHEAD_OF_COUNTER else None
        if rank is not None:
            return Meaning(field, rank, is_eval=False) if rank else Meaning(None)
    return None


_NOT_MEASURED = _set("size retries version num id seed v_num")
_COUNTED = _set("batch sample token tokens epoch iteration batch_in_epoch sample_in_epoch token_in_epoch in")
_AHEAD_OF_COUNTER = _set(
    "completed complete done begin_ after at global current training train trainer optimizer optim eval validate validation val metrics stats finished end "
    "for in on of the results summary test update loss valid iteration_ ✨ →"
)


def _loss(words: list[str], rest: list[str], held_out: bool, *, is_part: bool) -> Meaning | None:
    core = [word for word in rest if word in _LOSS_CORE]
    if not core or (core == ["cost"] and {"batch", "reader", "time", "data"} & set(words)):
        return None
    if not _HIDE.isdisjoint(words) or "scale" in words or "scaler" in words or "scaling" in words:
        return Meaning("" if "scale" in words else None, weak=True)
    field = VAL_LOSS if held_out else LOSS
    more = [word for word in rest if word not in _LOSS_CORE]
    if not more:
        smoothed = not {"avg", "avr", "average", "mean", "smooth", "smoothed", "running", "ema"}.isdisjoint(
            words
        )
        part = bool({"batch"} & set(words)) and core[0] == "loss"
        rank = 10 if len(words) == 1 else 9
        rank = 8 if {"total"} & set(words) and len(words) > 2 else rank
        return Meaning(field, 6 if smoothed or part else rank, held_out)
    kinds = set(more)
    if is_part:
        return Meaning("", is_eval=held_out, weak=True)
    if kinds <= _LOSS_RL:
        return Meaning(field, 3, held_out)
    if kinds <= _LOSS_KIND and kinds != {"entropy"}:
        return Meaning(field, 2, held_out)
    return Meaning("", is_eval=held_out, weak=True)


def _rate_of_learning(joined: str, words: list[str], rest: list[str]) -> Meaning | None:
    plain = [bare for word in rest if (bare := re.sub(r"\d+$", "", word))]
    if not (
        "lr" in plain
        or joined in {"lrate", "l_r"}
        or ("learning" in plain and "rate" in plain)
        or "学习率" in plain
        or joined == "lrate"
    ):
        return None
    if not _HIDE.isdisjoint(words) or {"mult", "multiplier", "scheduler", "decay", "factor", "scale"} & set(
        words
    ):
        return Meaning("", weak=True)
    ahead = set(plain) - {
        "lr",
        "learning",
        "rate",
        "学习率",
        "optim",
        "optimizer",
        "group",
        "pg",
        "param",
        "actor",
        "opt",
        "lrate",
        "model",
        "adam",
        "adamw",
        "w",
        "l",
        "r",
        "sgd",
        "decoupledadamw",
        "decoupled",
        "lion",
        "g",
        "new",
        "default",
        "params",
        "unet",
        "policy",
    }
    if ahead and not ("lr" in words and "group" in plain):
        return Meaning("", weak=True)
    # Of several groups the first: a trailing number other than 0 is another group.
    number = re.search(r"(\d+)$", joined)
    return Meaning(LR, 8 - min(int(number[1]), 5) if number else 9)


def _norm(words: list[str], rest: list[str]) -> Meaning | None:
    if words == ["norm"]:
        return Meaning(GRAD_NORM, 4, weak=True)
    if words[-1] in {"gnorm", "grdn", "gradnorm"}:
        return Meaning(GRAD_NORM, 8) if not {"loss", "param"} & set(words) else None
    if words[-2:] == ["g", "norm"]:
        return Meaning(GRAD_NORM, 7)
    named = not _GRAD.isdisjoint(words)
    if not named or "norm" not in words:
        return None
    extra = (
        set(rest)
        - _GRAD
        - {
            "norm",
            "act",
            "actor",
            "optim",
            "optimizer",
            "clipped",
            "clip",
            "unclipped",
            "l2",
            "all",
            "model",
            "policy",
            "pre",
            "before",
            "the",
        }
    )
    if extra or not _HIDE.isdisjoint(words):
        return Meaning("", weak=True)
    return Meaning(GRAD_NORM, 6 if "clip" in words or "clipped" in words else 9)


def _throughput(joined: str, words: list[str]) -> Meaning | None:
    have = set(words)
    if have & EVAL_WORDS:
        timed = have & _SECOND and "per" in have
        return (
            Meaning("" if timed or joined.endswith(("wps", "tps")) else None, weak=True)
            if timed or joined.endswith(("wps", "tps"))
            else None
        )
    if joined in {
        "wps",
        "tps",
        "train_wps",
        "train_tps",
        "tgs",
        "tok_s",
        "toks",
        "tokens_s",
    } or joined.endswith("_tps"):
        return Meaning(TOKENS, 8)
    if joined in {"ips", "img_s", "imgs", "samplespersec", "samples_s", "train_ips"} and joined != "imgs":
        return Meaning(SAMPLES, 6)
    if "samplespersec" in joined.replace("_", "") and not have & _PER_DEVICE:
        return Meaning(SAMPLES, 4 if "running" in words or "avg" in words else 8)
    per_device = 3 if have & _PER_DEVICE else 0
    if have & _SECOND and (have & _TOKEN_UNIT or have & _SAMPLE_UNIT) and len(have) <= 8:
        field = TOKENS if have & _TOKEN_UNIT else SAMPLES
        if {"source", "target"} <= have:
            return Meaning("", weak=True)
        # Per device beside a total of all: the total.
        return Meaning(
            field if not (field is SAMPLES and per_device) else "",
            8 - per_device,
            weak=field is SAMPLES and bool(per_device),
        )
    if words[-1] == "throughput" and not {"tflop", "tflops", "flops", "flop", "mfu", "batches"} & have:
        return Meaning(TOKENS, 3)
    return None


def _memory(joined: str, words: list[str]) -> Meaning | None:
    have = set(words)
    if joined == "nvidia_smi":
        return Meaning(MEMORY, 5)
    if not (have & _MEM or joined.startswith(("gpu_mem", "max_mem", "memory"))):
        return None
    if have & (_NOT_PROCESS - {"total"}) or ("total" in have and "peak" not in have and "max" not in have):
        return Meaning(None)
    if {"bandwidth", "util", "percent", "pct"} & have:
        return Meaning("", weak=True)
    if "current" in have:
        return Meaning(None)
    peak = have & {"peak", "max", "maximum", "maxmemallocated", "maxmem"} or joined.startswith("max")
    allocated = have & {"alloc", "allocated", "maxmemallocated", "memallocated"}
    gpu = have & {"gpu", "cuda", "gpumem", "vram", "device", "hbm"} or any(w.startswith("gpu") for w in words)
    rank = 4 + (3 if allocated else 0) + (2 if peak and allocated else 0) + (1 if gpu else 0)
    if allocated and not peak:
        rank = 5
    if "active" in have:
        rank = 4
    if allocated and not peak and len(words) <= 2 and not gpu and joined in {"mem_allocated", "memallocated"}:
        return Meaning("", weak=True)
    plain = (gpu and (allocated or have & {"usage", "mem", "gpumem"})) or (peak and allocated)
    return Meaning(MEMORY, rank, weak=not plain)


def _time(joined: str, words: list[str]) -> Meaning | None:
    have = set(words)
    if joined in {
        "eta",
        "remaining_time",
        "time_remaining",
        "remaining",
        "time_left",
        "estimated_time_remaining",
        "剩余时间",
        "eta_seconds",
        "time_to_finish",
        "est_remaining",
        "eta_time",
        "time_until_done",
        "est",
        "remain",
        "eta_s",
        "time_eta",
    } or ("eta" in have and len(words) <= 3):
        return Meaning(ETA, 8)
    if "remaining" in have:
        return Meaning(ETA, 6) if {"time", "estimated"} & have and "estimate" not in have else Meaning(None)
    rank = _STEP_TIME.get(joined)
    if rank is not None:
        return Meaning(STEP_TIME, rank, weak=joined in {"time", "seconds", "time_ms"})
    if joined in _IGNORED_TIMES or {"elapsed", "wall", "walltime", "wallclock"} & have:
        per_step = "per" in have and {"iteration", "step", "iter", "batch", "it"} & have
        return Meaning(STEP_TIME, 8) if per_step else Meaning(None)
    if {"time", "ms", "sec", "seconds", "duration", "latency"} & have:
        per_step = {"step", "iter", "iteration", "batch", "it"} & have
        per = "per" in have or words[:1] in (["ms"], ["s"], ["sec"])
        if per_step and per and not {"data", "load", "forward", "backward"} & have:
            return Meaning(STEP_TIME, 7, weak=True)
        return Meaning("", weak=True)
    return None


_STEP_TIME = {
    "time": 3, "iter_time": 5, "iteration_time": 6, "step_time": 8, "batch_time": 5, "avg_batch_cost": 5, "batch_cost": 5, "train_time": 9,
    "dt": 5, "seconds": 3, "updt_s": 6, "step_avg": 4, "train_step_timing_in_s": 8, "timing_s_step": 8, "time_per_step": 8, "sec_per_step": 7,
    "ms_per_step": 7, "train_iter_time": 5, "iter_t": 5, "time_per_iter": 8, "time_iter": 6, "s_iter": 6, "s_it": 6, "sec_iter": 6, "ms_batch": 7, "ms_step": 7, "step_ms": 8, "step_s": 6, "batch_t": 5,
    "t_step": 5, "sec_batch": 6, "s_step": 6, "s_batch": 6, "sec_step": 6, "time_step": 5, "step_time_s": 8, "step_time_ms": 8, "iter_time_s": 6, "step_time_avg": 5, "ms_it": 6, "ms_iter": 6,
    "step_seconds": 7, "train_step_time": 8, "avg_step_time": 6, "avg_iter_time": 5, "step_duration": 6, "train_batch_cost": 5,
    "global_step_time": 6, "batch_secs": 5, "time_it": 5, "time_batch": 5, "step_time_sec": 8, "sec_it": 6, "timing_step": 6, "perf_time_per_step": 8, "update_s": 6,
    "step_latency": 5, "iter_ms": 6, "time_ms": 5, "step_time_seconds": 8, "train_step_timing": 7, "timing_train_step": 7, "timing_step_time": 7,
}  # fmt: skip
_IGNORED_TIMES = _set(
    "total_time elapsed elapsed_time wall walltime train_wall wall_time time_elapsed train_runtime eval_runtime runtime epoch_time sec_tick sec_kimg total_wall_time time_total_s train_wall_total e2e_train_time"
)
