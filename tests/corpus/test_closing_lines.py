"""What stands above and below a failure in the same file, and is no part of it, changes no verdict."""

from __future__ import annotations

import pytest

from supervisor.sources.signature_files import Engine, default_cache_dir, load_engine
from tests.corpus.scoring import records, verdict_on

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
)  # fmt: skip
# A kill by the kernel is told by an exit status alone: a tool's complaint above it is the only line that names anything.
BY_EXIT_ALONE = frozenset(["a-host_oom-05"])


@pytest.fixture(scope="module")
def engine() -> Engine:
    return load_engine(default_cache_dir())


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
