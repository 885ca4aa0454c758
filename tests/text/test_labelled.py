"""Secrets by form, and look-alikes: in arguments, variables, configurations, logs and addresses."""

from __future__ import annotations

from collections import Counter

from tests.text.labelled import LOOK_ALIKES, SECRETS, Form


def test_there_are_ten_of_each_form() -> None:
    assert Counter(row.form for row in SECRETS) == dict.fromkeys(Form, 10)
    assert all(row.secret in row.text for row in SECRETS)
    assert len(LOOK_ALIKES) == 40
