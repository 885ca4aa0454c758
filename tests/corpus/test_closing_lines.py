"""What stands above and below a failure in the same file, and is no part of it, changes no verdict."""

from __future__ import annotations

import pytest

from supervisor.sources.signature_files import Engine
from tests.corpus.scoring import NOT_FAILURES, examined, records, verdict_on

# As batch scripts and training scripts end, whatever happened before.
CLOSING = (
    "All done", "All done!", "Done.", "done", "Finished.", "Finished!", "Exiting.", "Bye.", "=== END ===", "Success!", "DONE", "Job done.",
    "Training completed!", "Training complete.", "Training finished", "training done", "Training is complete", "Finished training",
    "Job completed.", "Job finished", "Script completed successfully", "Run completed successfully", "Experiment finished, results in out/",
    "Total training time: 0:13:22", "Elapsed: 802 s", "real\t13m22.1s", "End of script", "Process group destroyed", "All epochs done", "[1]+  Done   bash run.sh",
)  # fmt: skip
WARNINGS = (
    "/v/site-packages/apex/amp.py:81: FutureWarning: `torch.cuda.amp.GradScaler(args...)` is deprecated.\n  scaler = torch.cuda.amp.GradScaler()",
    "Disabling PyTorch because PyTorch >= 2.4 is required but found 2.1.2",
    "mkdir: cannot create directory '/cache': Permission denied",
    "cp: cannot stat 'old/config.yaml': No such file or directory",
    "rm: cannot remove 'out/last': No such file or directory",
    "/v/torch/utils/data/dataloader.py:557: UserWarning: This DataLoader will create 8 worker processes in total. Our suggested max number of worker is 4",
    "WARNING: pip is being invoked by an old script wrapper. This will fail in a future version of pip.",
    "Loading module cuda/12.1: conflict with gcc/9; unloading gcc",
    "[W socket.cpp:601] [c10d] The client socket has failed to connect to [localhost]:29500 (errno: 99 - Cannot assign requested address).",
    'Lmod is automatically replacing "gcc" with "nvhpc".',
    "WARNING:torch.distributed.run:*****************************************",
    "WARNING: infoROM is corrupted at gpu 0000:3B:00.0",
    "/v/torch_geometric/typing.py:63: UserWarning: An issue occurred while importing 'torch-scatter'. Disabling its usage. undefined symbol: _ZN5",
    "/v/torch/amp/autocast_mode.py:266: UserWarning: User provided device_type of 'cuda', but CUDA is not available. Disabling",
    "/v/torch/nn/parallel/_functions.py:64: UserWarning: Was asked to gather along dimension 0, but all input tensors were scalars; will instead unsqueeze",
    "/v/torch/optim/lr_scheduler.py:131: UserWarning: Detected call of `lr_scheduler.step()` before `optimizer.step()`.",
    "/v/transformers/utils/generic.py:441: FutureWarning: `torch.utils._pytree._register_pytree_node` is deprecated.",
    "/v/huggingface_hub/file_download.py:1132: FutureWarning: `resume_download` is deprecated and will be removed in version 1.0.0.",
    "Allowing ninja to set a default number of workers... (overridable by setting the environment variable MAX_JOBS=N)",
    "slurmstepd-taurus: error: couldn't chdir to `/mnt/qe-lr/slurm': No such file or directory: going to /tmp instead",
    "2023-11-01 15:27:59.627062: W tensorflow/platform/dso_loader.cc:64] Could not load dynamic library 'libnvinfer_plugin.so.7'; dlerror: libnvinfer_plugin.so.7",
    "2024-03-22 09:35:18.421533: W tensorflow/compiler/tf2tensorrt/utils/py_utils.cc:38] TF-TRT Warning: Could not find TensorRT",
    "Some weights of BertForSequenceClassification were not initialized from the model checkpoint at bert-base and are newly initialized: ['classifier.bias']",
    "huggingface/tokenizers: The current process just got forked, after parallelism has already been used. Disabling parallelism to avoid deadlocks...",
    "Error loading .netrc, using the environment instead",
    "wandb: WARNING Calling wandb.login() after wandb.init() has no effect.",
    "wandb: Network error (ConnectionError), entering retry loop.",
    "[W OperatorEntry.cpp:153] Warning: Overriding a previously registered kernel for the same operator and the same dispatch key",
    "module: command not found",
    "stty: 'standard input': Inappropriate ioctl for device",
)  # fmt: skip
CLEAN_UP = (
    "slurmstepd-n1: error: *** STEP 7.0 ON n1 CANCELLED AT {t} ***\nslurmstepd-n1: error: container_p_join: open failed for /var/tmp/7/.ns: No such file or directory",
    "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT {t} ***\nslurmstepd: error: _cgroup_procs_check: failed on path /sys/fs/cgroup/7: No such file or directory",
    "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT {t} ***\nslurmstepd: error: Unable to create TMPDIR [/tmp/7]: Permission denied\nslurmstepd: error: epilog failed",
    "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\nslurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT {t} ***\nsrun: error: n1: task 0: Terminated",
)
STARTS = ("nohup: ignoring input", "nohup: ignoring input and appending output to 'nohup.out'")
# A kill by the kernel is told by an exit status alone: a tool's complaint above it is the only line that names anything.
BY_EXIT_ALONE = frozenset(["a-host_oom-05"])


@pytest.mark.fault("hostile input", "`All done` below a failure, warnings above it", "the same verdict")
def test_a_closing_line_is_no_success_and_a_warning_above_is_no_cause(engine: Engine) -> None:
    """Each line with every few records; of all 6,636 pairs 3 changed when the rules were made, below `mkdir`, where no line names a cause."""
    changed = []
    for number, record in enumerate(records()):
        text, before = record["text"], verdict_on(record["text"], engine).failure
        below = CLOSING[number % len(CLOSING)]
        above = WARNINGS[number % len(WARNINGS)]
        if (after := verdict_on(f"{text.rstrip()}\n{below}\n", engine).failure) is not before:
            changed.append(f"{record['id']}: {before} -> {after} by {below!r} below")
        if record["id"] in BY_EXIT_ALONE:
            continue
        if (after := verdict_on(f"{above}\n{text}", engine).failure) is not before:
            changed.append(f"{record['id']}: {before} -> {after} by {above!r} above")
    assert not changed, "\n".join(changed)


@pytest.mark.fault("hostile input", "a scheduler's clean-up below a failure", "the same verdict")
def test_a_schedulers_clean_up_changes_no_verdict(engine: Engine) -> None:
    changed = []
    for number, record in enumerate(failed for failed in records() if failed["cls"] not in NOT_FAILURES):
        before = verdict_on(record["text"], engine).failure
        below = CLEAN_UP[number % len(CLEAN_UP)].format(t="2026-11-22T23:00:00")
        if (after := verdict_on(f"{record['text'].rstrip()}\n{below}\n", engine).failure) is not before:
            changed.append(f"{record['id']}: {before} -> {after} by {below!r}")
    assert not changed, "\n".join(changed)


@pytest.mark.fault(
    "hostile input",
    "several jobs appended to one file",
    "each has its own verdict, the last one is the file's",
)
def test_of_two_jobs_in_a_file_each_has_its_own_verdict(engine: Engine) -> None:
    """Each record below another one, as `nohup ... >> train.log` leaves them."""
    every = records()
    changed = []
    for number, record in enumerate(every):
        other, start = every[(number * 37 + 11) % len(every)], STARTS[number % len(STARTS)]
        one, two = (f"{start}\n{text['text'].rstrip()}\n" for text in (other, record))
        alone = verdict_on(one, engine).failure, verdict_on(two, engine).failure
        both = examined(one + two, engine)
        found = [job.verdict.failure for job in both.earlier][-1:], both.verdict.failure
        if found != ([alone[0]], alone[1]):
            changed.append(f"{other['id']} and {record['id']}: {alone} -> {found}")
    assert not changed, "\n".join(changed)


def test_training_that_went_on_and_came_to_its_end_is_healthy(engine: Engine) -> None:
    """The same closing line is a good end where steps were made between."""
    error = "RuntimeError: CUDA error: an illegal memory access was encountered\n"
    trace = 'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    step()\n' + error
    steps = "".join(f"step {number} loss {3 - number / 100:.2f}\n" for number in range(60))
    assert verdict_on(steps + trace + "Training completed!\n", engine).failure.value == "cuda_error"
    assert (
        verdict_on(
            steps + trace + steps.replace("step ", "step 1") + "Training completed!\n", engine
        ).failure.value
        == "healthy"
    )
