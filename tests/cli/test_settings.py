"""How a command reaches Kafka: which setting counts, and that no error shows a value."""

from pathlib import Path

import pytest

from strandline.cli.settings import kafka_settings, read_properties
from strandline.config import MAX_BYTES
from strandline.errors import ConfigError, OptionError

SECRET = "hunter2"


def test_options_count_over_the_file_and_the_file_over_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "kafka.properties"
    file.write_text("bootstrap.servers=file:1\nsasl.username=file\nclient.id = c \n")
    environment = {"STRANDLINE_KAFKA": "environment:1"}
    assert kafka_settings({}, None, [], None, None) == {"bootstrap.servers": "127.0.0.1:9092"}
    assert kafka_settings(environment, None, [], None, None) == {"bootstrap.servers": "environment:1"}
    assert kafka_settings(environment, file, [], None, None)["bootstrap.servers"] == "file:1"
    assert kafka_settings(environment, file, ["sasl.username=a=b"], "option:1", "g") == {
        "bootstrap.servers": "option:1",
        "sasl.username": "a=b",
        "client.id": "c",
        "group.id": "g",
    }


def test_lines_that_say_nothing_do_not_count(tmp_path: Path) -> None:
    file = tmp_path / "kafka.properties"
    file.write_bytes(b"\xef\xbb\xbf# of the test\r\n\r\n! too\r\nsasl.password=#a=b!\r\n")
    assert read_properties(file) == {"sasl.password": "#a=b!"}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (f"client.id=c\n{SECRET}\n".encode(), ":2: is not name=value"),
        (f"={SECRET}\n".encode(), ":1: is not name=value"),
        (f"sasl.password={SECRET}\nsasl.password={SECRET}\n".encode(), ":2: 'sasl.password' is given twice"),
        (b"\xff", ": is not UTF-8"),
        (b"#" * (MAX_BYTES + 1), ": is larger than 1,048,576 bytes"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_its_line_and_without_its_content(
    content: bytes, problem: str, tmp_path: Path
) -> None:
    file = tmp_path / "kafka.properties"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_properties(file)
    assert str(caught.value) == f"{file}{problem}"


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file or directory"):
        read_properties(tmp_path / "none")


@pytest.mark.parametrize("pair", [SECRET, f"={SECRET}"])
def test_a_setting_without_a_name_is_refused_and_not_shown(pair: str) -> None:
    with pytest.raises(OptionError) as caught:
        kafka_settings({}, None, [pair], None, None)
    assert str(caught.value) == "--set takes name=value, such as --set security.protocol=ssl"
