"""What policy decides, in the words that a person reads, and the code that a script gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from supervisor.job.batch import BatchChange, BatchSpec
from supervisor.job.launch.env import NOT_MEASURED
from supervisor.job.memory_fit import MemoryTrial
from supervisor.job.spec import Knobs, KnobScope, LoaderKnobs, RetrySettings, TrialSettings
from supervisor.run.events import StopWhy
from supervisor.run.records import Decision, DecisionKind, Precondition, Reason, SpecChange
from tests.policy.cases import FOREIGN, F, ended, lost_at, one

BATCH = BatchSpec(8, 1, 1)
TRUST = RetrySettings(exit_zero="trust")
SMALLER = RetrySettings(allow_smaller_global=True)
TRIAL = TrialSettings(steps=15, timeout_s=900.0)
AT_EXIT = ended(F.WORKER_CRASH, Reason.AT_EXIT, last=30)
OOM = ended(F.CUDA_OOM, last=4, batch=BatchSpec(12, 1, 2))
PER_RANK = Knobs(batch="--batch_size", batch_scope=KnobScope.PER_RANK, resume="--resume")
PIPE = "the pipe in train.sh hides the exit code (`set -o pipefail`)"
PATHED = Knobs(resume_path="--ckpt")
LOADER = LoaderKnobs(("--num_workers", 8))


UNREAD = {"log_read_bytes": 120_000_000, "log_size_bytes": 600_000_000}
SAME = SpecChange()
NO_LIBUV = (("USE_LIBUV", "0"), ("TORCHELASTIC_USE_AGENT_STORE", "0"))


def at_once(change: SpecChange = SAME, **more: Any) -> dict[str, Any]:
    return {"change": change, "show_first": (Precondition.GPU_MEMORY,), "wait_s": 50.0, **more}


def restarts(change: SpecChange = SAME, **more: Any) -> dict[str, Any]:
    return at_once(change, delay_s=1.0, **more)


@pytest.mark.parametrize(
    ("decided", "kind", "reason", "exit_code", "more"),
    [
    (lambda: one(ended(F.CODE_ERROR, last=4, stop=StopWhy.REQUEST)), "stop", "stopped on request", 5, {}),
    (lambda: one(ended(F.CODE_ERROR, last=4, stop=StopWhy.SIGNAL)), "stop", "stopped by a signal to stoker", 5, {}),
    (lambda: one(ended(F.CODE_ERROR, last=4, stop=StopWhy.SIGNAL), in_batch_job=True), "stop", "the batch system ended the job: no checkpoint was committed", 5, {}),
    (lambda: one(ended(F.CODE_ERROR, last=4, saved=(3,), stop=StopWhy.SIGNAL), in_batch_job=True), "requeue", "the batch system ended the job: checkpoint committed, requeue me", 75, {}),
    (lambda: one(ended(F.CODE_ERROR, last=4, stop=StopWhy.REQUEUE)), "stop", "the batch system warned of its limit: no checkpoint was committed", 5, {}),
    (lambda: one(ended(F.CODE_ERROR, last=4, saved=(3,), stop=StopWhy.REQUEUE)), "requeue", "the batch system warned of its limit: checkpoint committed, requeue me", 75, {}),
    (lambda: one(ended(F.CODE_ERROR, last=4, stop=StopWhy.RESTART)), "restart", "ended to be restarted", None, {"change": SAME}),
    (lambda: one(ended(None, last=9, exit_code=0, stop=StopWhy.REQUEST), total_steps=9), "succeed", "finished at step 9", 0, {}),
    (lambda: one(ended(None, last=9, exit_code=0)), "succeed", "finished at step 9", 0, {}),
    (lambda: one(ended(F.TERMINATED, Reason.USER, last=15, stop=StopWhy.TRIAL), trial=TRIAL, interactive=True), "succeed", "trial of 15 steps: stopped at step 15", 0, {}),
    (lambda: one(ended(F.TERMINATED, Reason.USER, last=7, stop=StopWhy.TRIAL), trial=TRIAL), "fail", "trial of 15 steps: 7 seen within 900 s", 1, {}),
    (lambda: one(ended(F.NCCL_ERROR, last=7, saved=(5,)), trial=TRIAL, interactive=True), "fail", "nccl_error: a trial is not restarted", 1, {}),
    (lambda: one(ended(F.NCCL_ERROR, last=7, saved=(5,))), "restart", "nccl_error: restart from the newest checkpoint", None, restarts()),
    (lambda: one(ended(None, exit_code=0, last=20), trial=TRIAL), "succeed", "trial of 15 steps: finished at step 20", 0, {}),
    (lambda: one(AT_EXIT, total_steps=30), "succeed", "finished at step 30; the abort at exit came after all work", 0, {}),
    (lambda: one(AT_EXIT, final_checkpoint=True), "succeed", "finished at step 30; the abort at exit came after all work", 0, {}),
    (lambda: one(AT_EXIT, total_steps=40), "fail", "aborted at exit, and neither the last step nor a final checkpoint is known", 1, {}),
    (lambda: one(AT_EXIT), "fail", "aborted at exit, and neither the last step nor a final checkpoint is known", 1, {}),
    (lambda: one(ended(None, exit_code=None, last=5)), "fail", "its exit status was lost and no cause is known", 6, {}),
    (lambda: one(ended(F.UNKNOWN, exit_code=None, last=5), total_steps=5), "succeed", "finished at step 5 (its exit status was lost)", 0, {}),
    (lambda: one(ended(None, exit_code=0)), "succeed", "finished", 0, {}),
    (lambda: one(structs.replace(ended(None, last=9, exit_code=0), **UNREAD)), "succeed", "finished; log read to 120 of 600 MB, to step 9", 0, {}),
    (lambda: one(structs.replace(ended(None, exit_code=0), **UNREAD)), "succeed", "finished; log read to 120 of 600 MB", 0, {}),
    (lambda: one(ended(F.CODE_ERROR, last=7, exit_code=0), total_steps=20, code_hidden_by=PIPE), "fail", f"code_error: exit code 0, but rank 1 ended with an exception at step 7 of 20; {PIPE}; a restart would fail at the same line: fix it first", 1, {"asks": True}),
    (lambda: one(ended(F.CODE_ERROR, last=7, exit_code=0), interactive=True), "hold", "code_error: exit code 0, but rank 1 ended with an exception at step 7; a restart would fail at the same line: fix it first", 1, {"change": SAME, "asks": True}),
    (lambda: one(ended(F.CODE_ERROR, last=7, exit_code=0), in_batch_job=True), "fail", "code_error: exit code 0, but rank 1 ended with an exception at step 7; a restart would fail at the same line: fix it first", 93, {"asks": True}),
    (lambda: one(ended(F.USAGE_ERROR, exit_code=0)), "fail", "usage_error: exit code 0, but rank 1 ended with an exception before its first step; the script refused its arguments: correct them", 1, {"asks": True}),
    (lambda: one(ended(F.WORKER_CRASH, Reason.SIGNAL, last=4, saved=(3,), exit_code=0), newest_checkpoint="c/3"), "restart", "worker_crash: exit code 0, but rank 1 crashed at step 4; restart from the newest checkpoint", None, restarts()),
    (lambda: one(ended(F.CUDA_OOM, last=4, batch=BATCH, exit_code=0)), "restart", "cuda_oom: exit code 0, but rank 1 ended with an exception at step 4; micro-batch 8 → 4, accumulation 1 → 2, global batch 8 unchanged: the largest smaller divisor", None, at_once(SpecChange(batch=BatchChange(BATCH, BatchSpec(4, 2, 1))))),
    (lambda: one(ended(F.CODE_ERROR, last=7, exit_code=0), retry=TRUST), "succeed", "finished at step 7; exit code 0 is trusted", 0, {}),
    (lambda: one(ended(F.CODE_ERROR, last=7, exit_code=0), trial=TrialSettings()), "succeed", "trial of 20 steps: finished at step 7", 0, {}),
    (lambda: one(ended(F.UNKNOWN, last=7, exit_code=0)), "succeed", "finished at step 7", 0, {}),
    (lambda: one(ended(F.UNKNOWN, Reason.ENDED_EARLY, last=7, saved=(6,), exit_code=0)), "fail", "unknown", 7, {"asks": True}),
    (lambda: one(ended(F.UNKNOWN, Reason.ENDED_EARLY, last=7, saved=(6,), exit_code=0), in_batch_job=True), "fail", "unknown", 7, {"asks": True}),
    (lambda: one(ended(F.UNKNOWN, Reason.ENDED_EARLY, last=7, exit_code=0), interactive=True, code_hidden_by=PIPE), "hold", f"unknown; {PIPE}", 7, {"change": SAME, "asks": True}),
    (lambda: one(ended(F.UNKNOWN, Reason.ENDED_EARLY, last=7, exit_code=0), retry=TRUST), "succeed", "finished at step 7; exit code 0 is trusted", 0, {}),
    (lambda: one(ended(F.NAN_LOSS, last=7, exit_code=0), retry=TRUST), "fail", "finished, but the loss is NaN or Inf", 1, {}),
    (lambda: one(ended(F.TERMINATED, Reason.USER, last=4)), "stop", "stopped by its user", 5, {}),
    (lambda: one(ended(F.TERMINATED, Reason.OUTSIDE, last=4)), "restart", "terminated: restart from the newest checkpoint", None, restarts()),
    (lambda: one(ended(F.TERMINATED, Reason.TIME_LIMIT, last=4)), "stop", "the time limit was reached: no checkpoint was committed", 5, {}),
    (lambda: one(ended(F.TERMINATED, Reason.PREEMPTED, last=4, saved=(3,))), "requeue", "the job was preempted: checkpoint committed, requeue me", 75, {}),
    (lambda: one(ended(F.CUDA_OOM, last=4, batch=BATCH), loader=LOADER), "restart", "cuda_oom: micro-batch 8 → 4, accumulation 1 → 2, global batch 8 unchanged: the largest smaller divisor", None, at_once(SpecChange(batch=BatchChange(BATCH, BatchSpec(4, 2, 1))))),
    (lambda: one(ended(F.CUDA_OOM, last=4, batch=BATCH), retry=RetrySettings(min_micro_batch=8)), "fail", "cuda_oom: no micro-batch of 8 or more below 8 is left; gradient checkpointing, shorter sequences or sharding would help", 1, {}),
    (lambda: one(ended(F.CUDA_OOM, last=4, batch=BATCH), old_batch="the old batch would continue"), "fail", "cuda_oom: the old batch would continue", 1, {}),
    (lambda: one(ended(F.CUDA_OOM, last=4)), "fail", "cuda_oom: the value of --device_batch_size is not known (give --device_batch_size a number); gradient checkpointing, shorter sequences or sharding would help", 1, {}),
    (lambda: one(ended(F.CUDA_OOM, last=3, batch=BatchSpec(48, 1, 1)), trials=(MemoryTrial(24, fitted=False), MemoryTrial(12, fitted=True))), "restart", "cuda_oom: micro-batch 48 → 12, accumulation 1 → 4, global batch 48 unchanged: it fitted before", None, at_once(SpecChange(batch=BatchChange(BatchSpec(48, 1, 1), BatchSpec(12, 4, 1))))),
    # A smaller global batch only where it was allowed, where what the batch counts is known, and where it cannot be kept.
    (lambda: one(OOM, PER_RANK), "fail", "cuda_oom: no accumulation is known beside --batch_size (--accumulation-knob, or --allow-smaller-global)", 1, {}),
    (lambda: one(OOM, PER_RANK, retry=SMALLER), "restart", "cuda_oom: micro-batch 12 → 6, accumulation 1 unchanged, global batch 24 → 12: allowed by --allow-smaller-global", None, at_once(SpecChange(batch=BatchChange(BatchSpec(12, 1, 2), BatchSpec(6, 1, 2))))),
    (lambda: one(OOM, retry=SMALLER), "restart", "cuda_oom: micro-batch 12 → 6, accumulation 1 → 2, global batch 24 unchanged: the largest smaller divisor", None, at_once(SpecChange(batch=BatchChange(BatchSpec(12, 1, 2), BatchSpec(6, 2, 2))))),
    (lambda: one(OOM, Knobs(batch="--b", resume="--resume"), retry=SMALLER), "fail", "cuda_oom: no accumulation is known beside --b (--accumulation-knob, or --allow-smaller-global with --batch-scope)", 1, {}),
    (lambda: one(structs.replace(OOM, batch=BatchSpec(1, 1, 2)), PER_RANK, retry=SMALLER), "fail", "cuda_oom: no accumulation is known beside --batch_size (--accumulation-knob, or --allow-smaller-global)", 1, {}),
    (lambda: one(ended(F.CODE_ERROR, last=4)), "fail", "code_error: a restart would fail at the same line: fix it first", 1, {}),
    (lambda: one(ended(F.CODE_ERROR, last=4), interactive=True), "hold", "code_error: a restart would fail at the same line: fix it first", 1, {"change": SAME}),
    (lambda: one(ended(F.WORKER_CRASH, Reason.SIGNAL, last=4), retry=RetrySettings(enabled=False)), "fail", "worker_crash: automatic restarts are off (--no-retry)", 1, {}),
    (lambda: one(ended(F.WORKER_CRASH, Reason.SIGNAL, last=4), retry=RetrySettings(max_retries=0)), "fail", "worker_crash: automatic restarts are off (--max-retries 0)", 1, {}),
    (lambda: one(ended(F.WORKER_CRASH, Reason.SIGNAL, last=4), FOREIGN), "fail", "worker_crash: steps were made and the script's resume flag is not known, so a restart may overwrite its checkpoint; name it: --resume-knob FLAG=PATH", 1, {"asks": True}),
    (lambda: one(ended(F.WORKER_CRASH, Reason.SIGNAL, last=4), FOREIGN, newest_checkpoint="c/3.pt"), "fail", "worker_crash: c/3.pt was found, but not the flag that resumes from it: name it (--resume-knob FLAG=PATH)", 1, {"asks": True}),
    (lambda: one(ended(F.WORKER_CRASH, Reason.SIGNAL, last=4), FOREIGN, not_now="the flag cannot be set"), "fail", "worker_crash: steps were made and the flag cannot be set", 1, {"asks": True}),
    (lambda: one(ended(F.WORKER_CRASH, Reason.SIGNAL, last=4), PATHED), "fail", "worker_crash: steps were made and no whole checkpoint of this run was found for --ckpt; start with --resume-knob '--ckpt=DIR/FILE'", 1, {}),
    (lambda: one(ended(F.WORKER_CRASH, Reason.SIGNAL, last=4), PATHED, interactive=True), "hold", "worker_crash: steps were made and no whole checkpoint of this run was found for --ckpt; press e and add --ckpt PATH, or start with --resume-knob '--ckpt=DIR/FILE'", 1, {"change": SAME}),
    (lambda: one(ended(F.WORKER_CRASH, Reason.SIGNAL, last=4), Knobs(resume_path="ckpt"), interactive=True), "hold", "worker_crash: steps were made and no whole checkpoint of this run was found for ckpt; press e and add ckpt=PATH, or start with --resume-knob 'ckpt=DIR/FILE'", 1, {"change": SAME}),
    (lambda: one(ended(F.WORKER_CRASH, Reason.SIGNAL, last=4), PATHED, newest_checkpoint="c/3.pt"), "restart", "worker_crash: restart from c/3.pt (--ckpt)", None, restarts()),
    (lambda: one(ended(F.WORKER_CRASH, Reason.SIGNAL, last=4), FOREIGN, given_start="--resume c2.pt", interactive=True), "hold", "worker_crash: steps were made since --resume c2.pt, and no whole checkpoint of this run was found: e gives another path, r starts from that one again", 1, {"change": SAME, "asks": True}),
    (lambda: one(ended(F.WORKER_CRASH, Reason.SIGNAL, last=4), Knobs(resume="--resume")), "restart", "worker_crash: restart from the newest checkpoint", None, restarts()),
    (lambda: one(ended(F.WORKER_CRASH, Reason.SIGNAL), FOREIGN, steps_seen=False), "fail", "worker_crash: whether steps were made cannot be seen, and the script's resume flag is not known (--resume-knob)", 1, {"asks": True}),
    (lambda: one(ended(F.WORKER_CRASH, Reason.SIGNAL, last=1), FOREIGN), "restart", "worker_crash: restart", None, restarts(SpecChange(from_scratch=True))),
    (lambda: one(ended(F.WORKER_CRASH, Reason.SIGNAL, last=2), FOREIGN), "fail", "worker_crash: steps were made and the script's resume flag is not known, so a restart may overwrite its checkpoint; name it: --resume-knob FLAG=PATH", 1, {"asks": True}),
    (lambda: one(structs.replace(ended(F.WORKER_CRASH, Reason.SIGNAL), first_step=1), FOREIGN, not_now="no"), "fail", "worker_crash: steps were made and no", 1, {"asks": True}),
    (lambda: one(ended(F.WORKER_CRASH, Reason.SIGNAL), FOREIGN), "restart", "worker_crash: restart", None, restarts(SpecChange(from_scratch=True))),
    (lambda: one(ended(F.WORKER_CRASH, Reason.SIGNAL)), "restart", "worker_crash: restart", None, restarts()),
    (lambda: one(ended(F.UNKNOWN), FOREIGN, measured=True, steps_seen=False), "restart", "unknown: no cause is known and no step was made: restart once without stoker's measurements, which may be the cause", None, at_once(SpecChange(env=(NOT_MEASURED,), from_scratch=True))),
    (lambda: one(ended(F.CODE_ERROR, Reason.INSTRUMENT, last=4), measured=True), "restart", "code_error: it was raised in stoker's own measurements: restart once without them", None, at_once(SpecChange(env=(NOT_MEASURED,)))),
    (lambda: one(ended(F.CODE_ERROR, Reason.INSTRUMENT, last=4)), "fail", "code_error: --no-instrument shows whether stoker's measurements are the cause", 1, {}),
    (lambda: one(ended(F.WORKER_CRASH, Reason.SILENT)), "fail", "worker_crash: no known cause, so no restart by itself", 1, {}),
    (lambda: one(ended(F.PORT_IN_USE), port_named=True), "fail", "port_in_use: the port was chosen by a person and is never moved; name a free port, or none: then stoker picks one", 1, {}),
    (lambda: one(ended(F.PORT_IN_USE), leads=False), "fail", "port_in_use: the port was chosen by a person and is never moved; name a free port, or none: then stoker picks one", 1, {}),
    (lambda: one(ended(F.PORT_IN_USE)), "restart", "port_in_use: the port was taken: another one", None, at_once(SpecChange(new_port=True), show_first=(Precondition.GPU_MEMORY, Precondition.PORT))),
    (lambda: one(ended(F.LIBUV), FOREIGN, steps_seen=False), "restart", "libuv: this PyTorch has no libuv: USE_LIBUV=0 for agent and workers", None, at_once(SpecChange(env=NO_LIBUV, from_scratch=True))),
    (lambda: one(ended(F.FD_LIMIT, last=4)), "restart", "fd_limit: too many open files: soft limit up to the hard one", None, at_once(SpecChange(raise_open_files=True))),
    (lambda: one(ended(F.SHM_EXHAUSTED, last=4), loader=LOADER), "restart", "shm_exhausted: DataLoader workers 8 → 4", None, at_once(SpecChange(set_args=(("--num_workers", "4"),)))),
    (lambda: one(ended(F.SHM_EXHAUSTED, last=4), loader=LoaderKnobs(("--num_workers", 1))), "restart", "shm_exhausted: DataLoader workers 1 → 0", None, at_once(SpecChange(set_args=(("--num_workers", "0"),)))),
    (lambda: one(ended(F.SHM_EXHAUSTED, last=4, batch=OOM.batch), PER_RANK, loader=LoaderKnobs(("--num_workers", 0)), interactive=True), "hold", "shm_exhausted: no DataLoader knob is known, or none is left to lower; enlarge /dev/shm, or lower the number of DataLoader workers", 1, {"change": SAME}),
    (lambda: one(ended(F.HOST_OOM, Reason.CGROUP_KILL, last=4), loader=LOADER), "restart", "host_oom: DataLoader workers 8 → 4", None, at_once(SpecChange(set_args=(("--num_workers", "4"),)))),
    (lambda: one(ended(F.SHM_EXHAUSTED, last=4)), "fail", "shm_exhausted: no DataLoader knob is known, or none is left to lower; enlarge /dev/shm, or lower the number of DataLoader workers", 1, {}),
    (lambda: one(structs.replace(ended(F.NAN_LOSS, last=9), not_finite=lost_at(5)), newest_checkpoint="c/3"), "restart", "nan_loss: resume from before the loss became NaN or Inf at step 5: c/3", None, at_once()),
    (lambda: one(ended(F.NAN_LOSS, last=9), newest_checkpoint="c/6"), "restart", "nan_loss: resume from before the loss became NaN or Inf at step 10: c/6", None, at_once()),
    (lambda: one(ended(F.NAN_LOSS, last=9)), "fail", "nan_loss: no earlier checkpoint is known; lower the learning rate, or resume from an earlier checkpoint", 1, {}),
    (lambda: one(ended(F.GPU_FAULT, last=5)), "restart", "gpu_fault: restart from the newest checkpoint", None, restarts()),
    (lambda: one(ended(F.DISK_FULL, last=4)), "restart", "disk_full: restart from the newest checkpoint", None, restarts(show_first=(Precondition.GPU_MEMORY, Precondition.DISK), wait_s=1800.0)),
    (lambda: one(ended(F.HANG, last=4)), "restart", "hang: restart from the newest checkpoint", None, restarts()),
    ],
)  # fmt: skip
def test_a_decision_says_why_and_what_to_type(
    decided: Callable[[], Decision], kind: str, reason: str, exit_code: int | None, more: dict[str, Any]
) -> None:
    assert decided() == Decision(DecisionKind(kind), reason, exit_code=exit_code, **more)
