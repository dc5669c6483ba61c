"""A certificate authority of one's own, for servers that speak TLS on this machine."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

# For as long as a data directory may be kept; the clock of the machine may be a little off.
VALID_FOR = timedelta(days=3650)
VALID_SINCE = timedelta(days=1)


class Authority:
    """Signs certificates, and is gone with its key when it is dropped."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        builder = self._builder(name, self._key.public_key(), authority=True)
        self.certificate = builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()
        """What a client needs to believe the servers; PEM, as all here."""

    def issue(self, name: str, hosts: Sequence[str] = (), password: str | None = None) -> tuple[str, str]:
        """A certificate for host names and addresses, and its key, which a password may protect."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(name, key.public_key(), authority=False)
        if hosts:
            names = x509.SubjectAlternativeName([_host(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)
        protection = NoEncryption() if password is None else BestAvailableEncryption(password.encode())
        return certificate.decode(), key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, protection).decode()

    def _builder(self, name: str, key: ec.EllipticCurvePublicKey, *, authority: bool) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - VALID_SINCE)
            .not_valid_after(now + VALID_FOR)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(_usage(authority=authority), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(issuer, critical=False)
        )


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
