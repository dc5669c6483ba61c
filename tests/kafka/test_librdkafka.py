"""Settings that librdkafka does not take, told without their values."""

import pytest
from confluent_kafka import Producer

from strandline.errors import OptionError
from strandline.kafka.librdkafka import client


@pytest.mark.parametrize(
    ("name", "value"), [("security.protocol", "hunter2"), ("retries", "hunter2"), ("no.such", "hunter2")]
)
def test_an_error_names_the_setting_and_not_its_value(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=name.replace(".", r"\.")) as raised:
        client(Producer, {"bootstrap.servers": "127.0.0.1:1", name: value})
    assert value not in str(raised.value)
