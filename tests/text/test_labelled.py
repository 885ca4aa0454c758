"""Secrets by form, and look-alikes: in arguments, variables, configurations, logs and addresses."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from supervisor.text.redact import HIDDEN, Redactor, redact, redact_argv, redact_text
from tests.text.labelled import (
    DOCUMENTED,
    DOCUMENTED_LOOK_ALIKES,
    LOOK_ALIKES,
    MISSED,
    SECRETS,
    WORDS,
    Form,
    Row,
)


def written(row: Row) -> Iterator[tuple[str, str]]:
    """The row before and after, in each way in which a text of its form comes to be written."""
    yield row.text, redact_text(row.text)
    note = {"note": [f"[rank3]: {row.text}"]}
    yield json.dumps(note), json.dumps(Redactor().data(note))
    if row.form in WORDS:
        words = shlex.split(row.text)
        if row.form is Form.VARIABLE:
            name, _, value = row.text.partition("=")
            yield value, redact(name, value)
            words = ["env", *words, "python", "train.py"]
        yield "\0".join(words), "\0".join(redact_argv(words))


def known(rows: Iterable[Row]) -> list[Any]:
    """Parameters of a test: rows, those that are missed as expected failures."""
    missed = pytest.mark.xfail(strict=True, reason="nothing in the text says so")
    return [
        pytest.param(row, id=row.text[:40], marks=[missed] if row.text.startswith(MISSED) else [])
        for row in rows
    ]


@pytest.mark.parametrize("row", known((*SECRETS, *DOCUMENTED)))
def test_a_labelled_secret_is_hidden_and_what_stands_before_it_stays(row: Row) -> None:
    for before, after in written(row):
        assert row.secret not in after
        assert json.dumps(row.secret)[1:-1] not in after
        assert HIDDEN in after
        assert after[:4] == before[:4] or after.startswith(HIDDEN)


@pytest.mark.parametrize("row", known((*LOOK_ALIKES, *DOCUMENTED_LOOK_ALIKES)))
def test_a_look_alike_stays(row: Row) -> None:
    for before, after in written(row):
        assert after == before


@pytest.mark.parametrize("row", [row for row in SECRETS if row.form in WORDS], ids=lambda row: row.text[:40])
def test_a_secret_of_the_command_line_is_hidden_where_the_script_prints_it(row: Row) -> None:
    words = shlex.split(row.text)
    name, _, value = row.text.partition("=")
    redactor = Redactor.of([(name, value)]) if row.form is Form.VARIABLE else Redactor.of([], words)
    if len(row.secret) > 6:  # shorter ones may stand anywhere by chance
        assert redactor.text(f"refused: {row.secret}") == f"refused: {HIDDEN}"
