"""
Tests of SQL filters of subscriptions: conditions that are true, false or unknown, system and custom properties, and expressions that the
emulator refuses.
"""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmos_outbox_emulators.servicebus.sqlfilter import parse_sql
from tests.emulators.servicebus.engine import message

SENT = message("id-1", session_id="ada", application={"n": 3, "s": "low", "flag": True, "odd name": 1.5})


def accepts(text, parameters=None):
    return parse_sql(text, parameters or {}).accepts(SENT)


@pytest.mark.parametrize(
    "text",
    [
        "n = 3", "n <> 4 AND s = 'low'", "n > 4 OR n <= 3", "NOT n = 4", "not (n = 4 or s = 'x')", "user.n = 3.0",
        "sys.MessageId = 'id-1'", "sys.sessionid LIKE 'a%'", "s LIKE '_ow'", "s NOT LIKE 'x%'", "s IN ('high', 'low')",
        "s NOT IN ('high')", "EXISTS(n)", "NOT EXISTS(missing)", "missing IS NULL", "n IS NOT NULL", "flag", "flag = TRUE",
        "[odd name] > 1", "n = @three AND s = @low", "NOT n = 4 AND NOT n = 5", "s = 'low' OR missing = 1",
    ],
)  # fmt: skip
def test_a_filter_whose_condition_is_true_selects_the_message(text):
    assert accepts(text, {"@three": 3, "@low": "low"})


@pytest.mark.parametrize(
    "text",
    [
        "n = 4", "missing = 1", "NOT missing = 1", "missing <> 1", "n = '3'", "NOT n = '3'", "missing IN (1)",
        "missing NOT LIKE 'a'", "s = 'LOW'", "sys.Label = 'x'", "s LIKE 'l%w%x'", "n = NULL", "s LIKE 'lo!_' ESCAPE '!'",
    ],
)  # fmt: skip
def test_a_filter_whose_condition_is_false_or_unknown_selects_no_message(text):
    assert not accepts(text)


@pytest.mark.parametrize(
    "text",
    ["", "n =", "n = 3 4", "n == 3", "(n = 3", "sys.Nothing = 1", "other.n = 1", "n = @none", "n + 1 = 4", "newid() = 1", "("
     * 100],
)  # fmt: skip
def test_a_filter_that_cannot_be_parsed_is_refused(text):
    with pytest.raises(ValueError, match=r"SQL filter|system property|scopes|parameter"):
        accepts(text)


@given(st.text(alphabet="n=<>()' andortliks@[]1.,", max_size=30))
def test_the_parser_of_filters_accepts_or_refuses_any_text(text):
    with contextlib.suppress(ValueError):
        accepts(text)
