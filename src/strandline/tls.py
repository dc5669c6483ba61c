"""The TLS of a server of ours: its certificate and key, and which of the two files cannot be used.

And of a server of somebody else's: whether it speaks any.
"""

import ssl
from pathlib import Path

from strandline.errors import OptionError

NOT_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"})
"""What OpenSSL calls bytes that are no record of TLS; the second from its version 3.2 on."""


def serving(certificate: Path, key: Path, section: str) -> ssl.SSLContext:
    """A context for a server; raises OptionError, which names the file. `section` is where the two are given."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for part, file in (("certificate", certificate), ("key", key)):
        try:
            file.open("rb").close()
        except OSError as error:
            raise OptionError(f"{section}.{part}: {file} cannot be read: {error.strerror}") from None
    try:
        # Of the two files, Python does not tell which was wrong. So the one is tried by itself.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cafile=certificate)
    except ssl.SSLError:
        raise OptionError(f"{section}.certificate: {certificate} holds no PEM certificate") from None
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise OptionError(f"{section}.key: {key} is not the key of {certificate}") from None
        raise OptionError(f"{section}.key: {key} holds no PEM key") from None
    except (OSError, ValueError) as error:
        raise OptionError(f"{section}.key: {key} cannot be used: {error}") from None
    return context


def _no_password() -> str:
    """OpenSSL would ask at the terminal."""
    raise ValueError("it is protected by a password")


def is_answered_without(error: BaseException) -> bool:
    """Whether a handshake was answered by what is no TLS. One that was broken off tells nothing for certain."""
    return isinstance(error, ssl.SSLError) and error.reason in NOT_TLS
