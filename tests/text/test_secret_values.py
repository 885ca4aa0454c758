"""Which names and values make a secret: one row a rule, each with what is just beside it."""

from __future__ import annotations

import pytest

from supervisor.text.secret_values import (
    HIDDEN,
    Kind,
    hides,
    hides_in_text,
    hides_next,
    is_plain,
    is_random,
    is_secret_name,
    kind_of_name,
    looks_secret,
    wordless,
)

RANDOM = "a8Zk2Qp9Xw3Lm7"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("PWD", Kind.OPEN),
        ("SSH_AUTH_SOCK", Kind.OPEN),
        ("GPG_KEY", Kind.OPEN),
        ("", Kind.OPEN),
        ("--", Kind.OPEN),
        ("password", Kind.SURE),
        ("dbPassword", Kind.SURE),
        ("MYSQLPASSWORD", Kind.SURE),
        ("password_file", Kind.OPEN),
        ("SLACK_WEBHOOK_URL", Kind.SURE),
        ("aws_access_key_id", Kind.SURE),
        ("user_key_id", Kind.OPEN),
        ("wandb_key", Kind.SURE),
        ("primary_key", Kind.LIKELY),
        ("key", Kind.LIKELY),
        ("key_of", Kind.OPEN),
        ("hf_token", Kind.SURE),
        ("HFToken", Kind.SURE),
        ("my_token", Kind.LIKELY),
        ("token", Kind.LIKELY),
        ("pad_token", Kind.OPEN),
        ("token_id", Kind.OPEN),
        ("hf_pad_token", Kind.OPEN),
        ("tokens", Kind.OPEN),
        ("auth", Kind.LIKELY),
        ("cookie", Kind.LIKELY),
        ("auth_mode", Kind.OPEN),
        ("author", Kind.OPEN),
        ("learning_rate", Kind.OPEN),
        ("MY_TOKEN2", Kind.LIKELY),
        ("hfToken2", Kind.SURE),
        ("PASSWD1", Kind.SURE),
        ("DBPASS", Kind.SURE),
        ("root.pw", Kind.SURE),
        ("GITHUBTOKEN", Kind.SURE),
        ("mytoken", Kind.LIKELY),
        ("pad_token2", Kind.OPEN),
        ("padtoken", Kind.OPEN),
        ("cache_key", Kind.OPEN),
        ("bypass", Kind.OPEN),
        ("forward_pass", Kind.OPEN),
        ("monkey", Kind.OPEN),
        ("secretary", Kind.OPEN),
        ("tokenizer2", Kind.OPEN),
        ("credential.helper", Kind.OPEN),
        ("x" * 200 + "_password", Kind.SURE),
        ("password_" + "x" * 200, Kind.OPEN),
        ("password" + "-" * 200, Kind.OPEN),
    ],
)
def test_what_a_name_says(name: str, kind: Kind) -> None:
    assert kind_of_name(name) is kind
    assert is_secret_name(name) is (kind is not Kind.OPEN)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ("", True),
        (HIDDEN, True),
        (f"a{HIDDEN}b", True),
        ("12", True),
        ("-1.5e-3", True),
        ("10%", True),
        ("True", True),
        ("none", True),
        ("***", True),
        ("${TOKEN}", True),
        ("$HOME", True),
        ("cfg.token", True),
        ("<your token>", True),
        ("/data/keys/my.pem", True),
        ("config.yaml", True),
        (f"/data/{RANDOM}", False),
        ("hunter2", False),
        ("12ab34", False),
    ],
)
def test_what_is_no_secret_whatever_its_name(value: str, plain: bool) -> None:
    assert is_plain(value) is plain


def test_a_number_may_be_a_password() -> None:
    assert is_plain("123456")
    assert not is_plain("123456", digits_too=False)
    assert is_plain("true", digits_too=False)
    assert hides("db_password", "123456")
    assert not hides("api_token", "123456")


@pytest.mark.parametrize(
    ("text", "random"),
    [
        ("a8Zk2Qp9Xw", True),
        ("a8Zk2Qp9X", False),
        ("1234567890123", False),
        ("checkpoint42", False),
        ("ABCDEFGHIJKLMNOPQRST", True),
        ("ABCDEFGHIJKLMNOPQRS", False),
        ("abcdefghijklmnopqrstuvwxyz", False),
        ("AbCdEfGhIjKlMnOpQrSt", True),
        ("TheQuickBrownFoxJumps", False),
        ("", False),
        ("-----", False),
        ("run-a8Zk2Qp9Xw", True),
    ],
)
def test_what_is_drawn_rather_than_written(text: str, random: bool) -> None:
    assert is_random(text) is random


def test_the_share_without_words() -> None:
    assert wordless("abc1") == 0.25
    assert wordless("ab12") == 1.0
    assert wordless("Abcd") == 0.0


@pytest.mark.parametrize(
    ("value", "secret"),
    [
        (RANDOM, True),
        ("aZ8k2Qp", False),
        ("p@ss1!x", False),
        ("p@ss1!xy", True),
        ("p@ssword1", False),
        ("pass@word!", False),
        ("12@34!56", False),
        ("0123456789abcdef", False),
        (f"two {RANDOM}", False),
        ("plain-words-only", False),
    ],
)
def test_what_looks_like_a_secret(value: str, secret: bool) -> None:
    assert looks_secret(value) is secret


@pytest.mark.parametrize(
    ("name", "value", "hidden"),
    [
        ("learning_rate", RANDOM, False),
        ("password", "hunter", True),
        ("password", "none", False),
        ("my_key", "hunter", False),
        ("my_key", RANDOM, True),
        ("token", "hunter", True),
        ("cookie", "hunter", True),
        ("TOKEN", "hunter", True),
        ("MY_KEY", "abc", False),
        ("MY_KEY", "aBc9", True),
        ("my_token", "abc", False),
        ("my_token", "aBc9", True),
        ("my_sig", "aBc9", False),
    ],
)
def test_what_was_given_on_purpose(name: str, value: str, hidden: bool) -> None:
    assert hides(name, value) is hidden


@pytest.mark.parametrize(
    ("name", "value", "given", "in_text"),
    [
        ("db.password", "hunter2", True, True),
        ("db.password", "hunter", True, False),
        ("db.password", "12345678", True, True),
        ("DB.PASSWORD", "missing2.", True, True),
        ("password", "hunter2", True, False),
        ("password", "reset", False, False),
        ("password", RANDOM, True, True),
        ("HUB.TOKEN2", "abc-7", True, True),
        ("data.key", "image", False, False),
        ("my.key", RANDOM, True, False),
        ("db.password", "--lr", False, False),
        ("db.password", "x=3", False, False),
        ("hub.api_key", "(expired", True, False),
        ("azure-secrets", "4.7.0", True, False),
        ("train_secret.py", "data2", False, False),
        ("credential.helper", "store2", False, False),
        ("SOLVER.BASE_LR", RANDOM, False, False),
    ],
)
def test_the_word_after_a_name(name: str, value: str, given: bool, in_text: bool) -> None:
    assert hides_next(name, value, given=True) is given
    assert hides_next(name, value, given=False) is in_text


HEX32 = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    ("name", "value", "how", "hidden"),
    [
        ("rate", RANDOM, {}, False),
        ("password", "12", {}, True),
        ("password", "hunter", {"quoted": True}, True),
        ("password", "incorrect", {"spaced": True}, False),
        ("password", "hunter", {}, True),
        ("token", "hf_token", {}, False),
        ("api_token", "hf_token", {}, False),
        ("password", "Hunter2!", {"spaced": True}, True),
        ("auth", "dXNlcjpwYXNz", {"quoted": True}, True),
        ("auth", "dXNlcjpwYXNz", {}, False),
        ("auth", "short", {"quoted": True}, False),
        ("key", HEX32, {"text": "wandb login"}, True),
        ("key", HEX32, {"text": "cache of weights"}, False),
        ("key", HEX32[:31], {"text": "wandb login"}, False),
        ("MY_KEY", "aBc9", {}, True),
        ("MY_KEY", "aBc9", {"spaced": True}, False),
        ("my_token", HEX32[:20], {}, True),
        ("my_token", HEX32[:19], {}, False),
        ("my_key", HEX32[:20], {}, False),
        ("my_key", RANDOM, {}, True),
    ],
)
def test_what_may_be_prose_or_code(name: str, value: str, how: dict[str, object], hidden: bool) -> None:
    given = {"quoted": False, "spaced": False, "text": "", **how}
    assert hides_in_text(name, value, **given) is hidden  # type: ignore[arg-type]
