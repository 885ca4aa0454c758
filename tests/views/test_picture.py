"""The first picture, whatever is in it and however large the terminal is: within its edges, and no command but ours."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from supervisor.views.palette import chosen
from supervisor.views.splash.picture import Depth, Look, Said, Scene, boxes, paint
from supervisor.views.tui.dashboard.layout import Needs, plan

OURS = re.compile(r"\x1b\[(?:\d+;\d+H|K|\d+X|[\d;]*m)")
PLACES = re.compile(r"\x1b\[(\d+);(\d+)H")

texts = st.text(max_size=40)
needs = st.builds(
    Needs,
    devices=st.integers(0, 80),
    ranks=st.integers(0, 200),
    log_more=st.integers(-60, 60),
    side_more=st.integers(-200, 200),
)
sizes = st.tuples(st.integers(1, 320), st.integers(1, 100))
scenes = st.builds(
    Scene,
    header=st.tuples(*[st.lists(st.builds(Said, text=texts, colour=st.just("dim")), max_size=3)] * 2),
    lines=st.lists(texts, max_size=60),
    indent=st.sampled_from([0, 10]),
    needs=st.none() | needs,
    alone=st.just("") | texts,
)


@given(scene=scenes, size=sizes, depth=st.sampled_from(Depth))
def test_it_stays_within_the_screen_and_sends_no_command_but_ours(
    scene: Scene, size: tuple[int, int], depth: Depth
) -> None:
    width, height = size
    text = paint(scene, Look(chosen(None, None), depth), width, height)
    assert OURS.sub("", text).isprintable()
    for row, column in PLACES.findall(text):
        assert 1 <= int(row) <= height
        assert 1 <= int(column) <= width


@given(needs=needs, size=sizes)
def test_no_pane_overlaps_another(needs: Needs, size: tuple[int, int]) -> None:
    seen: set[tuple[int, int]] = set()
    for box in boxes(plan(*size, needs), *size):
        if box.width <= 3 or box.height <= 2:
            continue
        cells = {
            (row, column)
            for row in range(box.top, box.top + box.height)
            for column in (box.left, box.left + box.width - 1)
        }
        assert not cells & seen
        seen |= cells
