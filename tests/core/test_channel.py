"""Words made from records."""

import pytest

from strandline.core.channel import Row, Template

ROW = Row("trades", b"BTC", b'{"a":{"b":"x","n":7,"t":true}}', (("type", b"buy"), ("empty", None)))


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("{key}", "BTC"),
        ("{key}.{header:type}", "BTC.buy"),
        ("{topic}/{json:a.b}", "trades/x"),
        ("{json:a.n}", "7"),
        ("plain", "plain"),
        ("{header:other}", None),
        ("{header:empty}", None),
        ("{json:a.t}", None),
        ("{json:a}", None),
        ("{json:a.b.c}", None),
    ],
)
def test_a_word_is_made_of_what_a_record_has(text: str, word: str | None) -> None:
    assert Template.parse(text).of(ROW) == word


def test_a_record_without_a_key_or_with_one_that_is_no_text_has_no_word() -> None:
    assert Template.parse("{key}").of(Row("t", None, None, ())) is None
    assert Template.parse("{key}").of(Row("t", b"\xff", None, ())) is None


@pytest.mark.parametrize(
    "value",
    [b"[" * 100_000, b'{"a":"\xff"}', b'{"a":"x","\xff":1}', b'{"a":1e999999999999999999999}', b'{"a":"\\ud800"}', b""],
)
def test_a_record_whose_value_cannot_be_decoded_has_no_word(value: bytes) -> None:
    assert Template.parse("{json:a}").of(Row("t", None, value, ())) is None


@pytest.mark.parametrize("text", ["{keys}", "{", "a}b", "{header:}", "{json:a..b}"])
def test_a_template_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Template.parse(text)
