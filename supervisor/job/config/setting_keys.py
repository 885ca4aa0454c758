"""The keys of job files and product settings: what each takes, and where it belongs."""

from __future__ import annotations

from typing import Final

from supervisor.job.config.trainer_keys import KeyType

_I, _F, _T, _S = KeyType.INT, KeyType.FLOAT, KeyType.TEXT, KeyType.SWITCH

SETTINGS: Final[dict[str, KeyType]] = {
    "run.script": _T,
    "run.module": _T,
    "run.name": _T,
    "run.python": _T,
    "run.log_level": _T,
    "run.nproc_per_node": _T,
    "run.nnodes": _T,
    "run.node_rank": _I,
    "run.master_addr": _T,
    "run.master_port": _I,
    "run.total_steps": _I,
    "run.torch_local_path": _T,
    "run.libuv": _S,
    "run.cuda_home": _T,
    "run.debug_distributed": _S,
    "run.deterministic": _S,
    "run.expected_memory_gib": _F,
    "run.trial_steps": _I,
    "run.trial_timeout_s": _F,
    "batch.knob": _T,
    "batch.accumulation_knob": _T,
    "batch.global_knob": _T,
    "batch.scope": _T,
    "batch.accumulation_counts": _T,
    "batch.unit": _T,
    "batch.tokens_per_sample": _I,
    "batch.micro": _I,
    "batch.global": _I,
    "batch.fit_steps": _I,
    "batch.fit_timeout_s": _F,
    "resume.knob": _T,
    "resume.value": _T,
    "resume.self_resuming": _S,
    "policy.retry": _S,
    "policy.max_retries": _I,
    "policy.min_micro_batch": _I,
    "policy.min_ranks": _I,
    "policy.flap_max": _I,
    "policy.flap_window_s": _F,
    "policy.restart_from_scratch": _S,
    "policy.allow_smaller_global": _S,
    "policy.grace_s": _F,
    "policy.hold_s": _F,
    "hang.enabled": _S,
    "hang.flag_s": _F,
    "hang.flag_factor": _F,
    "hang.act_s": _F,
    "hang.act_factor": _F,
    "hang.return_factor": _F,
    "hang.busy_act_s": _F,
    "hang.busy_ratio": _F,
    "hang.rounds_apart_s": _F,
    "hang.countdown_s": _F,
    "hang.end_hangs": _S,
    "hang.faulthandler": _S,
    "ui.theme": _T,
    "ui.ascii": _S,
    "ui.lang": _T,
}
CLASS_KEYS: Final[dict[str, KeyType]] = {
    "answer": _T,
    "change": _T,
    "max": _I,
    "delay_s": _F,
    "wait_s": _F,
}
# What may have to be shown before the next launch (`run.records.Precondition`), a list under ``show_first``.
PRECONDITIONS: Final = ("gpu_memory", "port", "disk")
CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "batch.scope": ("per_rank", "per_node", "global"),
    "batch.unit": ("samples", "tokens"),
    "batch.accumulation_counts": ("per_rank", "all_ranks"),
    "ui.theme": ("dark", "light", "safe"),
    "ui.lang": ("en", "zh"),
    "run.log_level": ("debug", "info", "warning", "error"),
    "role": ("cause", "consequence", "advice"),
    "start": ("before_first_step", "after_first_step"),
    "recurs": ("no", "yes"),
    "answer": ("restart", "hold", "stop"),
    "change": (
        "none",
        "shrink",
        "fewer_workers",
        "new_port",
        "no_libuv",
        "raise_files",
        "resume_earlier",
        "exclude_gpu",
    ),
}
# Flat keys of a trainer's job file that speak of the launch, not of the training.
FLAT: Final[dict[str, str]] = {
    "nproc_per_node": "run.nproc_per_node",
    "num_gpus": "run.nproc_per_node",
    "nnodes": "run.nnodes",
    "torch_local_path": "run.torch_local_path",
    "expected_memory_gib": "run.expected_memory_gib",
}
# Tables whose inside belongs to other packages: the screen, and metric patterns of the user.
METRICS: Final = "metrics"
SIGNATURE: Final = "signature"
# What a [[signature]] takes. `class` or `name` says what the failure is; `action` is one of policy's (`answer`, `change`).
SIGNATURE_KEYS: Final = ("id", "regex", "class", "name", "role", "action", "start", "recurs")
LAUNCH_SECTIONS: Final = frozenset({"run", "batch", "resume", "env", "policy", "hang"})
# How the screen looks: in `stoker.toml` and `config.toml`, never in a job file.
SCREEN: Final = "ui"
