"""The certificates of a throw-away cluster: one authority, valid for a day, that signs its servers and its users."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from lab.kubernetes.kubeconfig import AUTHORITY

LIFE = datetime.timedelta(days=1)


class Authority:
    """Its certificate is `ca.crt` in `directory`; what it signs is beside it, as NAME.crt and NAME.key."""

    def __init__(self, directory: Path):
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(AUTHORITY, ())
        certificate = self._builder(self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self.certificate_file = directory / "ca.crt"
        self.certificate_file.write_bytes(_pem(certificate.sign(self._key, hashes.SHA256())))

    def server(self, name: str) -> tuple[Path, Path]:
        """Certificate and key of a server on 127.0.0.1."""
        addresses = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
        return self._sign(name, _name(name, ()), x509.ExtendedKeyUsageOID.SERVER_AUTH, x509.SubjectAlternativeName(addresses))

    def client(self, user: str, groups: tuple[str, ...] = ()) -> tuple[Path, Path]:
        """Certificate and key by which the API server knows `user`."""
        return self._sign(user.replace(":", "-"), _name(user, groups), x509.ExtendedKeyUsageOID.CLIENT_AUTH)

    def _sign(
        self, file: str, subject: x509.Name, usage: x509.ObjectIdentifier, *extensions: x509.ExtensionType
    ) -> tuple[Path, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(subject, key).add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        certificate_file, key_file = self.directory / f"{file}.crt", self.directory / f"{file}.key"
        certificate_file.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        write_key(key_file, key)
        return certificate_file, key_file

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + LIFE)
        )


def write_key_pair(directory: Path, name: str) -> tuple[Path, Path]:
    """A key that signs tokens, and the one that verifies them."""
    key = ec.generate_private_key(ec.SECP256R1())
    private, public = directory / f"{name}.key", directory / f"{name}.pub"
    write_key(private, key)
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    public.write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, form))
    return private, public


def write_key(file: Path, key: ec.EllipticCurvePrivateKey) -> None:
    file.touch(mode=0o600)
    # Not PKCS 8: the controller manager reads it as a service account's key only in this form.
    form = serialization.PrivateFormat.TraditionalOpenSSL
    file.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


def _name(common: str, organizations: tuple[str, ...]) -> x509.Name:
    named = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, each) for each in organizations]
    return x509.Name([*named, x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
