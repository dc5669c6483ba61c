"""docs/proxy.md says what the code does."""

from pathlib import Path

from kio.schema.index import api_key_map

from strandline.proxy.rules.table import ALLOWED, OURS, RULES, allowed

PAGE = Path(__file__).parents[2] / "docs" / "proxy.md"


def rules() -> str:
    known = OURS | allowed(ALLOWED)
    rows = ["| API | | versions | what becomes of it |", "|---|---|---|---|"]
    for key in sorted(RULES):
        rule = RULES[key]
        low, high = known.get(key, (0, -1))
        rows.append(f"| {key} | {rule.name} | {f'{low} to {high}' if key in known else ''} | {rule.text} |")
    return "\n".join(rows)


def test_the_table_of_rules_is_that_of_the_code() -> None:
    page = PAGE.read_text()
    shown = page.partition("<!-- rules -->\n")[2].partition("\n<!-- /rules -->")[0]
    assert shown == rules(), f"put this between the marks of docs/proxy.md:\n{rules()}"


def test_every_api_of_kafka_has_a_rule() -> None:
    assert RULES.keys() == api_key_map.keys()
    assert all(rule.text for rule in RULES.values())
