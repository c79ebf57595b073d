"""What `verify=` of a webhook may be beside names like "github": recorded here, judged in discovery."""

from __future__ import annotations

bearer = "bearer"  # `Authorization: Bearer <the secret>`
basic = "basic"  # `Authorization: Basic …`; the secret is `user:password`


class Hmac:
    """A signature by HMAC over the raw body, in a header of the sender's own."""

    __slots__ = ("algorithm", "encoding", "header", "prefix")

    def __init__(self, header: str, algorithm: str, encoding: str, prefix: str) -> None:
        self.header = header
        self.algorithm = algorithm
        self.encoding = encoding
        self.prefix = prefix


def hmac(header: str, algorithm: str = "sha256", encoding: str = "hex", prefix: str = "") -> Hmac:
    """`verify=hmac("X-Signature", prefix="sha256=")`; algorithm sha1, sha256, sha384, sha512; encoding hex, base64."""
    return Hmac(header, algorithm, encoding, prefix)
