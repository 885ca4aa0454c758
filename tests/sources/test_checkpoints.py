"""Whole checkpoints in a foreign script's folders: found, and nothing half-written, old or unknown taken for one."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.sources import checkpoint_layouts
from supervisor.sources.checkpoint_layouts import (
    FoundCheckpoint,
    files_of,
    find_checkpoints,
    has_checkpoint_names,
    tree_bytes,
    whole_at,
    whole_saved,
)
from tests.conftest import not_none


def transformers(
    folder: Path, step: int, *, told: int | None = None, weights: str = "model.safetensors"
) -> Path:
    made = folder / f"checkpoint-{step}"
    made.mkdir(parents=True)
    if weights:
        (made / weights).write_bytes(b"w")
    (made / "trainer_state.json").write_text(json.dumps({"global_step": step if told is None else told}))
    return made


def lightning(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / name, "w") as archive:
        archive.writestr("archive/data.pkl", b"never read")
    return folder / name


def steps(folder: Path, since_t: float = 0.0) -> list[int | None]:
    return [one.step for one in find_checkpoints([folder], since_t)]


def saved(path: Path, *keys: str) -> Path:
    """A file as torch.save writes it: a zip, in its pickle the keys of a dict."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pickle = b"\x80\x02}(" + b"".join(b"X" + len(k).to_bytes(4, "little") + k.encode() for k in keys) + b"u."
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle)
        archive.writestr("archive/data/0", b"never read")
    return path


def torn(path: Path) -> None:
    """The file as it is where its writer was killed."""
    path.write_bytes(path.read_bytes()[:-30])


def accelerate(folder: Path, name: str = "step_20", ranks: int = 2) -> Path:
    saved(folder / name / "optimizer.bin")
    (folder / name / "model.safetensors").write_bytes(b"w")
    for rank in range(ranks):
        saved(folder / name / f"random_states_{rank}.pkl")
    return folder / name


def deepspeed(folder: Path, tag: str = "global_step20") -> Path:
    saved(folder / tag / "mp_rank_00_model_states.pt")
    saved(folder / tag / "zero_pp_rank_0_mp_rank_00_optim_states.pt")
    (folder / "latest").write_text(tag)
    return folder


def megatron(folder: Path, step: int = 20) -> Path:
    saved(folder / f"iter_{step:07d}" / "mp_rank_00" / "model_optim_rng.pt")
    (folder / "latest_checkpointed_iteration.txt").write_text(f"{step}\n")
    return folder


def distributed(folder: Path, name: str = "step-20") -> Path:
    (folder / name).mkdir(parents=True)
    (folder / name / "__0_0.distcp").write_bytes(b"w")
    (folder / name / ".metadata").write_bytes(b"\x80\x02}.")
    return folder / name


def of_a_run(folder: Path) -> Path:
    (folder / "nodes" / "0").mkdir(parents=True)
    (folder / "nodes" / "0" / "events.jsonl").touch()
    return folder


LAYOUTS: dict[str, tuple[Callable[[Path], Path], str, int | None, int | None]] = {
    "transformers": (lambda out: transformers(out, 20), "transformers", 20, 20),
    "accelerate": (accelerate, "accelerate", 20, 20),
    "diffusers": (lambda out: accelerate(out, "checkpoint-20"), "accelerate", 20, 20),
    "diffusers, saved by the main process alone": (lambda out: accelerate(out, "checkpoint-20", ranks=1), "accelerate", 20, 20),
    "accelerate's own names": (lambda out: accelerate(out / "checkpoints", "checkpoint_3"), "accelerate", None, 3),
    "accelerate's epochs": (lambda out: accelerate(out, "epoch_3"), "accelerate", None, 3),
    "DeepSpeed": (deepspeed, "DeepSpeed", 20, 20),
    "Megatron": (megatron, "Megatron", 20, 20),
    "torch.distributed.checkpoint": (distributed, "torch.distributed.checkpoint", 20, 20),
    "Lightning": (lambda out: lightning(out, "epoch=1-step=20.ckpt"), "Lightning", 20, 20),
    "Lightning by epoch": (lambda out: lightning(out, "epoch=1.ckpt"), "Lightning", None, 1),
    "Lightning's FSDP": (lambda out: saved(distributed(out, "epoch=1-step=20.ckpt") / "meta.pt").parent, "torch.distributed.checkpoint", 20, 20),
    "Lightning's last": (lambda out: saved(out / "last.ckpt", "epoch", "global_step", "optimizer_states"), "torch.save", None, None),
    "nanoGPT": (lambda out: saved(out / "ckpt.pt", "model", "optimizer", "iter_num"), "torch.save", None, None),
    "by epoch": (lambda out: saved(out / "checkpoint_12.pth", "state_dict", "epoch"), "torch.save", None, 12),
    "by step": (lambda out: saved(out / "model_step_20.pt", "optimizer_state_dict"), "torch.save", 20, 20),
    "ImageNet's": (lambda out: saved(out / "checkpoint.pth.tar", "epoch", "arch", "state_dict"), "torch.save", None, None),
    "the tutorial's": (lambda out: saved(out / "snapshot.pt", "MODEL_STATE", "EPOCHS_RUN"), "torch.save", None, None),
}  # fmt: skip
TORN: dict[str, Callable[[Path], object]] = {
    "transformers, no weights": lambda out: transformers(out, 10, weights=""),
    "transformers, half a state": lambda out: (transformers(out, 10) / "trainer_state.json").write_text("{"),
    "transformers, another step": lambda out: transformers(out, 10, told=9),
    "transformers, no state": lambda out: (transformers(out, 10) / "trainer_state.json").unlink(),
    "transformers, not renamed yet": lambda out: transformers(out, 10).rename(out / "tmp-checkpoint-10"),
    "Lightning, half": lambda out: torn(lightning(out, "epoch=1-step=20.ckpt")),
    "Lightning, one that may be anything": lambda out: lightning(out, "last.ckpt"),
    "accelerate, rank 0 missing": lambda out: (accelerate(out) / "random_states_0.pkl").unlink(),
    "accelerate, rank 0 alone without an optimizer": lambda out: (
        accelerate(out, ranks=1) / "optimizer.bin"
    ).unlink(),
    "accelerate, rank 0 alone with half an optimizer": lambda out: torn(
        accelerate(out, ranks=1) / "optimizer.bin"
    ),
    "accelerate, rank 0 alone without a model": lambda out: (
        accelerate(out, ranks=1) / "model.safetensors"
    ).unlink(),
    "accelerate, one rank of a sharded state": lambda out: (
        accelerate(out, ranks=1).joinpath("optimizer.bin").rename(out / "step_20" / "optimizer_rank0.bin")
    ),
    "accelerate, one rank half": lambda out: torn(accelerate(out) / "random_states_1.pkl"),
    "accelerate, no random state": lambda out: accelerate(out, ranks=0),
    "DeepSpeed, no tag": lambda out: (deepspeed(out) / "latest").unlink(),
    "DeepSpeed, a tag of nothing": lambda out: (deepspeed(out) / "latest").write_text("global_step30"),
    "DeepSpeed, half a shard": lambda out: torn(
        deepspeed(out) / "global_step20" / "zero_pp_rank_0_mp_rank_00_optim_states.pt"
    ),
    "Megatron, no tracker": lambda out: (megatron(out) / "latest_checkpointed_iteration.txt").unlink(),
    "Megatron, a release": lambda out: (megatron(out) / "latest_checkpointed_iteration.txt").write_text(
        "release"
    ),
    "Megatron, nothing where the tracker points": lambda out: (
        megatron(out) / "iter_0000020" / "mp_rank_00"
    ).rename(out / "elsewhere"),
    "DeepSpeed, a tag elsewhere": lambda out: (deepspeed(out) / "latest").write_text("../out/global_step20"),
    "DeepSpeed, no model": lambda out: (
        deepspeed(out) / "global_step20" / "mp_rank_00_model_states.pt"
    ).unlink(),
    "Lightning's FSDP, no meta": lambda out: distributed(out, "epoch=1-step=20.ckpt"),
    "Lightning's FSDP, half its meta": lambda out: torn(
        saved(distributed(out, "epoch=1-step=20.ckpt") / "meta.pt")
    ),
    "a run's own folder": lambda out: saved(of_a_run(out) / "ckpt.pt", "optimizer"),
    "an archive of something else": lambda out: lightning(out, "ckpt.pt").rename(out / "model.zip"),
    "DCP, no metadata": lambda out: (distributed(out) / ".metadata").unlink(),
    "DCP, half its metadata": lambda out: (distributed(out) / ".metadata").write_bytes(b"\x80\x02}"),
    "torchtune, its state beside its weights": lambda out: saved(
        out / "recipe_state" / "recipe_state.pt", "optimizer"
    ),
    "a file half written": lambda out: torn(saved(out / "ckpt.pt", "optimizer")),
    "a file in the old form": lambda out: saved(out / "ckpt.pt").write_bytes(b"\x80\x02optimizer."),
    "weights alone": lambda out: saved(out / "model_20.pt", "layer.weight", "layer.bias"),
    "the best, not the newest": lambda out: saved(out / "model_best.pth.tar", "epoch", "optimizer"),
    "an optimizer alone": lambda out: saved(out / "optimizer_step_20.pt", "optimizer"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_is_found_whole(tmp_path: Path, layout: str) -> None:
    make, name, step, number = LAYOUTS[layout]
    path = make(tmp_path / "out")
    (found,) = find_checkpoints([tmp_path], 0.0, ranks=2)
    assert found == FoundCheckpoint(str(path), step, found.t, name, number)
    assert found.t == max(each.stat().st_mtime for each in (path, *path.rglob("*")) if each.is_file())
    assert find_checkpoints([tmp_path], found.t, ranks=2) == [found]
    again = whole_at(str(path), ranks=2)
    assert again == found, "it is known again by its path alone"
    assert find_checkpoints([tmp_path], found.t + 1.0, ranks=2) == [], (
        "what lay there before is not the run's"
    )


@pytest.mark.parametrize("what", TORN)
def test_a_torn_one_is_none(tmp_path: Path, what: str) -> None:
    TORN[what](tmp_path / "out")
    assert find_checkpoints([tmp_path], 0.0, ranks=2) == []


def test_a_newer_half_written_file_does_not_hide_the_older_whole_one(tmp_path: Path) -> None:
    saved(tmp_path / "epoch_1.pt", "epoch")
    torn(saved(tmp_path / "epoch_2.pt", "epoch"))
    assert [Path(one.path).name for one in find_checkpoints([tmp_path], 0.0)] == ["epoch_1.pt"]


def test_all_layouts_are_found_at_any_usual_depth_in_the_order_of_their_writing(tmp_path: Path) -> None:
    made = [
        transformers(tmp_path / "out", 500, weights="model-00001-of-00002.safetensors")
        / "trainer_state.json",
        lightning(tmp_path / "lightning_logs" / "version_0" / "checkpoints", "epoch=3-step=600.ckpt"),
        transformers(tmp_path / "hydra" / "2026" / "11-21", 700, weights="adapter_model.bin")
        / "trainer_state.json",
        transformers(tmp_path / "out", 1000) / "trainer_state.json",
    ]
    for at, path in enumerate(made):
        os.utime(path, (1000.0 + at, 1000.0 + at))
    found = find_checkpoints([tmp_path, tmp_path / "out"], 0.0)
    assert [one.step for one in found] == [500, 600, 700, 1000]
    assert all(os.path.isabs(one.path) and Path(one.path).exists() for one in found)


def test_links_are_not_followed_and_a_folder_of_thousands_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    transformers(tmp_path / "a", 5)
    assert steps(tmp_path) == [5]
    monkeypatch.setattr(checkpoint_layouts, "MAX_ENTRIES", 3)
    for number in range(10):
        (tmp_path / "a" / f"file{number}").touch()
    assert steps(tmp_path / "a") == []
    assert steps(tmp_path / "absent") == []


def test_what_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [
        transformers(tmp_path / "hf", 20),
        megatron(tmp_path / "mg"),
        saved(tmp_path / "ckpt.pt", "epoch"),
    ]
    tracker = tmp_path / "mg" / "latest_checkpointed_iteration.txt"
    tracker.write_text("20".ljust(256))
    sizes = {"MAX_STATE_BYTES": (made[0] / "trainer_state.json").stat().st_size}
    with zipfile.ZipFile(made[2]) as archive:
        sizes["MAX_PICKLE_BYTES"] = archive.getinfo("archive/data.pkl").file_size
    for name, size in sizes.items():
        monkeypatch.setattr(checkpoint_layouts, name, size)
    assert {one.path for one in find_checkpoints([tmp_path], 0.0)} == set(map(str, made))
    for name, size in sizes.items():
        monkeypatch.setattr(checkpoint_layouts, name, size - 1)
    tracker.write_text("20".ljust(257))
    assert find_checkpoints([tmp_path], 0.0) == []


def test_a_saved_path_leads_to_its_whole_checkpoint(tmp_path: Path) -> None:
    deep = megatron(tmp_path / "mg") / "iter_0000020" / "mp_rank_00" / "model_optim_rng.pt"
    tracker_t = (tmp_path / "mg" / "latest_checkpointed_iteration.txt").stat().st_mtime
    for path in (deep, deep.parent, deep.parent.parent):
        found = not_none(whole_saved(str(path), tracker_t, 0.0))
        assert (found.path, found.layout, found.step) == (str(tmp_path / "mg"), "Megatron", 20)
    assert whole_saved(str(deep), tracker_t + 1.0, 0.0) is None, "the one before"
    torn_one = accelerate(tmp_path / "ac", ranks=1)
    assert whole_saved(str(torn_one / "optimizer.bin"), 0.0, 1e12, ranks=4) == whole_at(str(torn_one))
    (torn_one / "optimizer.bin").unlink()
    assert whole_saved(str(torn_one / "model.safetensors"), 0.0, 1e12, ranks=4) is None
    file = saved(tmp_path / "any name", "optimizer")
    os.utime(file, (100.0, 100.0))
    plain = FoundCheckpoint(str(file), None, 100.0, "torch.save", None)
    assert whole_saved(str(file), 100.0, 100.0) == whole_at(str(file)) == plain
    assert whole_saved(str(file), 100.5, 200.0) is None
    assert whole_saved(str(file), 0.0, 99.5) is None
    assert whole_saved(str(saved(tmp_path / "ema.pt", "epoch")), 0.0, 1e12) is None
    assert whole_at(str(saved(tmp_path / "weights 7"))) is None
    assert whole_saved(str(tmp_path / "gone" / "a.pt"), 0.0, 1e12) is None


def test_a_checkpoints_files_and_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = megatron(tmp_path / "mg", 20)
    megatron(made, 30)
    shard, tracker = "iter_0000020/mp_rank_00/model_optim_rng.pt", "latest_checkpointed_iteration.txt"
    assert files_of(str(made), "Megatron", 20) == {name: str(made / name) for name in (tracker, shard)}
    assert set(files_of(str(made))) == {tracker, shard, shard.replace("20", "30", 1)}
    assert files_of(str(made / shard)) == {"": str(made / shard)}
    size = (made / shard).stat().st_size
    assert tree_bytes(made / shard) == size
    assert tree_bytes(made) == 2 * size + 3
    assert tree_bytes(tmp_path / "gone") is None
    monkeypatch.setattr(checkpoint_layouts, "MAX_COUNTED", 3)
    assert tree_bytes(made) == 2 * size + 3
    monkeypatch.setattr(checkpoint_layouts, "MAX_COUNTED", 2)
    assert tree_bytes(made) is None


def test_a_name_of_a_checkpoint_is_found_by_looking_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("train.log", ".cache/new.pt", "a/b/c/too-deep.pt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"never read")
    assert not has_checkpoint_names([tmp_path, tmp_path / "gone"])
    monkeypatch.setattr(checkpoint_layouts, "MAX_ENTRIES", 5)  # two files and three folders
    assert not has_checkpoint_names([tmp_path])
    monkeypatch.setattr(checkpoint_layouts, "MAX_ENTRIES", 4)
    assert has_checkpoint_names([tmp_path]), "too much to look at: there may be one"
    monkeypatch.undo()
    (tmp_path / "a" / "model.safetensors").write_bytes(b"never read")
    assert has_checkpoint_names([tmp_path])
