"""Who looks at a run: by files that move, as the keeper sees them, whatever any clock says."""

from __future__ import annotations

import os
from pathlib import Path

from supervisor.run.control import FORGOTTEN_S, REFRESH_S, STALE_S, Presence, Viewers


def test_a_screen_counts_once_its_file_has_moved_and_until_it_leaves(tmp_path: Path) -> None:
    presence, viewers = Presence(tmp_path), Viewers(tmp_path)
    viewers.look(0.0)
    assert not viewers.watched(0.0)
    presence.refresh(0.0)
    viewers.look(1.0)
    assert not viewers.watched(1.0), "it may have been left by a screen that was killed"
    presence.refresh(REFRESH_S + 1)
    viewers.look(5.0)
    assert viewers.watched(5.0)
    assert viewers.watched(5.0 + STALE_S)
    presence.leave()
    viewers.look(6.5)
    assert not viewers.watched(6.5)


def test_a_file_that_stands_still_is_nobodys_and_is_removed(tmp_path: Path) -> None:
    presence, viewers = Presence(tmp_path), Viewers(tmp_path)
    presence.refresh(0.0)
    viewers.look(0.0)
    presence.refresh(10.0)
    viewers.look(10.0)
    (path,) = tmp_path.iterdir()
    os.utime(path, (2e9, 2e9))  # a clock of another machine
    viewers.look(12.0)
    assert viewers.watched(12.0)
    viewers.look(10.0 + STALE_S + 1)
    assert not viewers.watched(10.0 + STALE_S + 1)
    viewers.look(10.0 + FORGOTTEN_S + 1)
    assert not list(tmp_path.iterdir())
    presence.refresh(200.0)
    viewers.look(200.0)
    presence.refresh(204.0)
    viewers.look(204.0)
    assert viewers.watched(204.0), "who was only asleep counts again"


def test_a_folder_that_is_gone_or_not_ours_matters_to_nobody(tmp_path: Path) -> None:
    presence, viewers = Presence(tmp_path / "gone"), Viewers(tmp_path / "gone")
    presence.refresh(0.0)
    viewers.look(0.0)
    presence.leave()
    assert not viewers.watched(0.0)
