"""What `stoker rehearse` refuses before it starts anything, and how it tells its own flags from those of `stoker run`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from supervisor.sources.overlay import NoOverlayError
from tests.cli.conftest import Call


@pytest.mark.parametrize(
    "words", ["train.py --out s3://bucket/x", "train.py --out=gs://b", "train.py --push_to_hub", "-- python t.py --hub_model_id=me/x"]
)  # fmt: skip
def test_what_would_be_written_elsewhere_is_refused(words: str, call: Call) -> None:
    code, out, err = call(f"rehearse {words}")
    assert (code, out) == (3, "")
    assert "writes to another place" in err
    assert "--allow-remote" in err


def test_bad_words_are_one_line(call: Call) -> None:
    assert call("rehearse") == (
        2, "", "stoker rehearse: say the words of `stoker run`: stoker rehearse --nproc-per-node 2 train.py\n"
    )  # fmt: skip
    assert call("rehearse --for soon train.py") == (
        2,
        "",
        "stoker rehearse: --for soon: say 90s, 10m or 1h\n",
    )
    assert call("rehearse --fail fire train.py").code == 2
    assert call("rehearse --runs-dir x train.py") == (
        2, "", "stoker rehearse: --runs-dir: a rehearsal has its own folder of runs, which is deleted\n"
    )  # fmt: skip


def test_a_kernel_without_overlays_is_refused_and_the_flags_of_the_job_stay_its_own(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Sequence[str]] = []

    def start(_scratch: Path, words: Sequence[str], _folders: Sequence[Path]) -> None:
        seen.append(words)
        raise NoOverlayError(1, "a user namespace: Operation not permitted")

    monkeypatch.setattr("supervisor.cli.rehearse._start", start)
    code, _, err = call("rehearse --fail nan --rank=1 --for 5m train.py --rank 3 --json")
    assert (code, seen) == (3, [["train.py", "--rank", "3", "--json"]])
    assert "a user namespace: Operation not permitted" in err
