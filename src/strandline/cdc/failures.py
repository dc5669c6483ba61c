"""What to do about each error of Kinesis, as data.

- Too fast, broken at their side, or not reached: again, as long as we lead. The fence ends it, not a count.
- Not allowed, not there, not our credentials: stop. Nothing is acknowledged, and one line says what to do.
- A record that is wrong: put away first, acknowledged then.
- A code that is not in the table is judged by the status of its answer: 5xx again, anything else stop. To stop loses
  nothing and is seen; to send the unknown for ever would be neither.
"""

import socket
import ssl
from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Final, NamedTuple

from strandline.core.retry import Backoff
from strandline.units import Nanos


class Course(Enum):
    """What to do."""

    AGAIN = auto()
    """It may work as it is, soon."""
    SLOWER = auto()
    """It would work, but we are too fast."""
    STOP = auto()
    """Somebody has to do something first."""
    PUT_AWAY = auto()
    """This record will never be taken; others will."""


class Problem(NamedTuple):
    """Why a record, or all of a request, was not accepted."""

    code: str
    message: str
    course: Course
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.code} ({self.message})" if self.message else self.code


BACKOFF: Final[Mapping[Course, Backoff]] = MappingProxyType(
    {
        Course.AGAIN: Backoff(first=Nanos(50_000_000), ceiling=Nanos(1_000_000_000)),
        # A shard counts by the second.
        Course.SLOWER: Backoff(first=Nanos(100_000_000), ceiling=Nanos(2_000_000_000)),
    }
)

ALLOW = "allow these credentials kinesis:PutRecords on it, and kinesis:DescribeStreamSummary"
KEYS = "check the access key, the secret and the session token"
KMS = "the stream's KMS key must be enabled and open to us: check the key and its policy"
REGION = "check the region, and endpoint_url where one is set"
UNKNOWN = "this answer is not known here: see the message, mend the cause and start again"

AGAIN = (
    "InternalFailure",
    "InternalFailureException",
    "InternalError",
    "InternalServerError",
    "InternalServiceException",
    "RequestTimeout",
    "RequestTimeoutException",
    "ResourceInUseException",
    "ServiceUnavailable",
    "ServiceUnavailableException",
)
SLOWER = (
    "KMSThrottlingException",
    "LimitExceededException",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
)
STOP = {
    "AccessDenied": ALLOW,
    "AccessDeniedException": ALLOW,
    "ExpiredToken": "the credentials have expired: renew them and start again",
    "ExpiredTokenException": "the credentials have expired: renew them and start again",
    "IncompleteSignature": KEYS,
    "IncompleteSignatureException": KEYS,
    "InvalidAccessKeyId": KEYS,
    "InvalidClientTokenId": KEYS,
    "InvalidSignatureException": "check the secret, the region and this machine's clock",
    "KMSAccessDeniedException": KMS,
    "KMSDisabledException": KMS,
    "KMSInvalidStateException": KMS,
    "KMSNotFoundException": KMS,
    "KMSOptInRequired": KMS,
    "MissingAuthenticationToken": KEYS,
    "MissingAuthenticationTokenException": KEYS,
    "NotAuthorized": ALLOW,
    "OptInRequired": "the account has to opt in to Kinesis in this region",
    "RequestExpired": "check this machine's clock",
    "ResourceNotFoundException": "create it, or check its name, the account and the region",
    "SignatureDoesNotMatch": "check the secret, the region and this machine's clock",
    "UnknownOperationException": REGION,
    "UnrecognizedClientException": KEYS,
}
PUT_AWAY = ("InvalidArgumentException", "RequestEntityTooLarge", "SerializationException", "ValidationException")

TABLE: Final[Mapping[str, tuple[Course, str]]] = MappingProxyType(
    dict.fromkeys(AGAIN, (Course.AGAIN, ""))
    | dict.fromkeys(SLOWER, (Course.SLOWER, ""))
    | dict.fromkeys(PUT_AWAY, (Course.PUT_AWAY, ""))
    | {code: (Course.STOP, advice) for code, advice in STOP.items()}
)
STATUSES: Final[Mapping[int, Course]] = MappingProxyType({408: Course.AGAIN, 413: Course.PUT_AWAY, 429: Course.SLOWER})


def answered(code: str, message: str, status: int) -> Problem:
    """An error that Kinesis answered with, for a request or for one of its records."""
    known = TABLE.get(code)
    if known is None:
        course = Course.AGAIN if status >= 500 else STATUSES.get(status, Course.STOP)
        return Problem(code or f"HTTP status {status}", message, course, UNKNOWN)
    return Problem(code, message, *known)


def not_answered(error: OSError, *, has_answered: bool) -> Problem:
    """No connection, no answer, none in time. `has_answered` is whether this endpoint ever did."""
    told = error.strerror or str(error)
    match error:
        case TimeoutError():
            return Problem("no answer in time", "", Course.AGAIN)
        case ssl.SSLCertVerificationError():
            advice = "name the certificates to trust in AWS_CA_BUNDLE"
            return Problem("certificate not trusted", error.verify_message, Course.STOP, advice)
        case socket.gaierror() if error.errno == socket.EAI_NONAME and not has_answered:
            # Once it had an address: then it is the network.
            return Problem("host not known", told, Course.STOP, REGION)
    return Problem("not reached", told, Course.AGAIN)
