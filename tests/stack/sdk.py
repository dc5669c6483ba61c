"""The SDK, told where our endpoint is, that tries nothing twice and lets everything through to it."""

from typing import Any

import boto3
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.support import TIMEOUT


def client(endpoint: str, *, is_signed: bool = True, read_timeout: float = TIMEOUT) -> Any:
    """A client of Kinesis."""
    config = Config(
        retries={"total_max_attempts": 1},
        parameter_validation=False,
        read_timeout=read_timeout,
        signature_version="v4" if is_signed else UNSIGNED,
    )
    return boto3.client(
        "kinesis",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
        config=config,
    )


def code_of(error: ClientError) -> str:
    """The code of an error."""
    return str(error.response["Error"]["Code"])


def entries(*data: bytes, key: str = "a") -> list[dict[str, object]]:
    """Records of one key."""
    return [{"Data": each, "PartitionKey": key} for each in data]
