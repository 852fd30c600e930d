"""One compressed piece of what the front end is given."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import msgspec

COMPRESSION = 9


@dataclass(frozen=True, slots=True)
class Part:
    """One compressed piece of an artifact. `size` is its length in bytes before compression."""

    artifact: str
    name: str
    data: bytes
    digest: str
    size: int

    @classmethod
    def of(cls, artifact: str, name: str, content: Any) -> Part:
        raw = msgspec.json.encode(content)
        digest = blake2b(raw, digest_size=8).hexdigest()
        return cls(artifact, name, zlib.compress(raw, COMPRESSION), digest, len(raw))

    def content(self) -> Any:
        return msgspec.json.decode(zlib.decompress(self.data))
