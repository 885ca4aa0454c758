"""The form of the guided start: questions, options, a step back, wrong answers, leaving."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from textual.pilot import Pilot

from supervisor.job.errors import JobError
from supervisor.job.guided import Around, Choices, Found, GuidedStart, Topic
from supervisor.views.appearance import Appearance, Lang
from supervisor.views.tui.start_form import Answer, StartForm

FOUND = Found((("batch", "micro-batch 8"), ("resume", "by itself")), "unknown")


def read(choices: Choices) -> Found:
    if choices.entry == "nope.py":
        raise JobError("nope.py: no such script")
    return FOUND


def play(
    scenario: Callable[[StartForm, Pilot[None]], Awaitable[None]],
    *,
    appearance: Appearance | None = None,
    several: bool = False,
    size: tuple[int, int] = (100, 40),
) -> StartForm:
    choices = Choices({"run.nnodes": 2, "run.master_addr": "n1"} if several else {})
    choices = choices.having(Topic.NODES).having(Topic.ADDRESS) if several else choices
    start = GuidedStart(Around(("train.py", "eval.py"), gpus=2, python="torch 2.9 in python"), choices, read)
    form = StartForm(start, appearance=appearance or Appearance(), can_begin=lambda: not several)

    async def run() -> None:
        async with form.run_test(size=size) as pilot:
            await pilot.pause()
            await scenario(form, pilot)

    asyncio.run(run())
    return form


async def type_line(pilot: Pilot[None], text: str) -> None:
    await pilot.press(*text, "enter")
    await pilot.pause()


def shown(form: StartForm) -> str:
    return "\n".join(strip.text for strip in form.screen._compositor.render_strips())


def test_enter_takes_what_is_proposed_and_starts() -> None:
    async def scenario(form: StartForm, pilot: Pilot[None]) -> None:
        for asked in ("which script", "what follows train.py", "how many ranks", "how many machines"):
            assert asked in shown(form)
            await type_line(pilot, "")
        assert "micro-batch 8" in shown(form)
        await type_line(pilot, "")
        await type_line(pilot, "")
        page = shown(form)
        assert "nproc_per_node = 2" in page
        assert "stoker run --config train.toml" in page
        await pilot.press("enter")

    form = play(scenario)
    assert (form.write, form.begin) == (True, True)


def test_options_are_chosen_and_a_step_back_is_taken() -> None:
    async def scenario(form: StartForm, pilot: Pilot[None]) -> None:
        await pilot.press("down", "enter")
        await type_line(pilot, "--lr 1")
        assert form.start.choices.args == ("--lr", "1")
        await pilot.press("escape", "escape", "escape")
        await pilot.pause()
        assert "which script" in shown(form)
        await pilot.press("up", "enter")
        await pilot.pause()
        assert form.start.choices.entry == "eval.py"
        await pilot.press("ctrl+c")

    form = play(scenario)
    assert (form.write, form.begin) == (False, False)


def test_answers_typed_ahead_belong_to_their_questions() -> None:
    async def scenario(form: StartForm, pilot: Pilot[None]) -> None:
        keys = ["enter", *"--lr 1", "enter", "4", "enter", "enter", "down", "enter", "enter", "enter"]
        await pilot.press(*keys)
        await pilot.pause()
        assert form.start.choices.args == ("--lr", "1")
        assert form.start.choices.settings["run.nproc_per_node"] == 4
        assert form.start.choices.settings["policy.restart_from_scratch"] is True
        assert form.start.question() is None

    play(scenario)


def test_a_wrong_answer_stays_with_its_reason() -> None:
    async def scenario(form: StartForm, pilot: Pilot[None]) -> None:
        await type_line(pilot, "nope.py")
        assert "no such script" in shown(form)
        assert "which script" in shown(form)
        await pilot.press("backspace")
        await pilot.pause()
        assert "no such script" not in shown(form)

    play(scenario)


def test_w_only_writes() -> None:
    async def scenario(form: StartForm, pilot: Pilot[None]) -> None:
        for _ in range(6):
            await type_line(pilot, "")
        await pilot.press("w")

    form = play(scenario)
    assert (form.write, form.begin) == (True, False)


@pytest.mark.parametrize("size", [(50, 18), (80, 24), (200, 60)])
@pytest.mark.parametrize("lang", list(Lang))
def test_at_any_size_and_in_any_language_the_keys_are_in_sight(size: tuple[int, int], lang: Lang) -> None:
    async def scenario(form: StartForm, pilot: Pilot[None]) -> None:
        for _ in range(6):
            assert "Ctrl-C" in shown(form)
            assert form.query_one(Answer).region.height == 1
            await type_line(pilot, "")
        assert form.start.question() is None
        assert "Esc" in shown(form)
        assert "[run]" in shown(form)

    play(scenario, size=size, appearance=Appearance(lang=lang))
