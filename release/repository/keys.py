"""Private keys in folders: made, found by their id, opened.

A key is a PKCS #8 file `<role>-<first 16 digits of its id>.pem` of mode 0600 in a folder of mode 0700,
encrypted where a passphrase is given. Root keys may lie in folders of their own, one of each holder,
that are there only for a ceremony. Secrets are never shown: not in a repr, not in a message.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from securesystemslib.signer import CryptoSigner, Key, Signer

from release.disk import Disk
from release.repository.errors import KeyMissing

RETIRED = "retired"
_ID_DIGITS = 16
_MOST_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Keys:
    """Where private keys lie. `folder` has those for every day; `root_folders` root keys, if elsewhere."""

    folder: Path
    root_folders: tuple[Path, ...] = ()
    passphrase: str | None = field(default=None, repr=False)
    root_passphrase: str | None = field(default=None, repr=False)
    disk: Disk = field(default_factory=Disk, repr=False)

    def folders(self, role: str) -> tuple[Path, ...]:
        """Where keys of a role are made, and looked for first."""
        return self.root_folders if role == "root" and self.root_folders else (self.folder,)

    def make(self, role: str, count: int = 1) -> list[Key]:
        """New keys, each in the folder of that role that has the fewest. Returns the public halves; raises OSError."""

        def full(folder: Path) -> int:
            return len(list(folder.glob(f"{role}-*.pem")))

        return [self._make(role, min(self.folders(role), key=full)) for _ in range(count)]

    def has(self, role: str, key: Key) -> bool:
        """Whether the private half is here; does not open it."""
        return self._find(role, key.keyid) is not None

    def signers(self, role: str, keys: Iterable[Key], needed: int) -> list[Signer]:
        """Those of `keys` that are here, `needed` at least. Raises KeyMissing."""
        keys = list(keys)
        found = [(key, path) for key in keys if (path := self._find(role, key.keyid)) is not None]
        if len(found) < needed:
            places = ", ".join(map(str, dict.fromkeys((*self.folders(role), self.folder))))
            names = ", ".join(_file_name(role, key.keyid) for key in keys)
            raise KeyMissing(
                f"signing as {role} needs {needed} of its {len(keys)} key(s), and {len(found)} lie in {places} "
                f"(looked for: {names}): name the folder with {'--root-keys' if role == 'root' else '--keys'}"
            )
        return [self._open(role, key, path) for key, path in found]

    def retire(self, role: str, keys: Iterable[Key]) -> None:
        """Sets replaced private keys aside, so that nothing signs with them by mistake."""
        for key in keys:
            if (path := self._find(role, key.keyid)) is not None:
                aside = path.parent / RETIRED
                aside.mkdir(mode=0o700, exist_ok=True)
                self.disk.move(path, aside / path.name)

    def _find(self, role: str, keyid: str) -> Path | None:
        for folder in dict.fromkeys((*self.folders(role), self.folder)):
            path = folder / _file_name(role, keyid)
            if path.is_file():
                return path
        return None

    def _make(self, role: str, folder: Path) -> Key:
        private = Ed25519PrivateKey.generate()
        public = CryptoSigner(private).public_key
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        secret = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, self._encryption(role))
        path = folder / _file_name(role, public.keyid)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            self.disk.append(descriptor, memoryview(secret), path)
            self.disk.sync(descriptor, path)
        finally:
            os.close(descriptor)
        self.disk.sync_folder(folder)
        return public

    def _open(self, role: str, key: Key, path: Path) -> Signer:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077 and path.stat().st_uid == os.getuid():
            raise KeyMissing(
                f"{path} may be read by others (mode {mode:o}): chmod 600 it, or rotate the key if in doubt"
            )
        secret = self._secret(role)
        try:
            with path.open("rb") as handle:
                content = handle.read(_MOST_BYTES)
            encrypted = b"ENCRYPTED" in content
            private = load_pem_private_key(content, secret.encode() if secret and encrypted else None)
            signer = CryptoSigner(private)
        except (TypeError, ValueError, UnsupportedAlgorithm) as error:
            name = "WEIR_ROOT_KEY_PASSPHRASE or WEIR_KEY_PASSPHRASE" if role == "root" else "WEIR_KEY_PASSPHRASE"
            raise KeyMissing(
                f"{path} cannot be opened: it is no private key, or {name} "
                f"{'is not its' if secret else 'must give its'} passphrase"
            ) from error
        if signer.public_key.keyid != key.keyid:
            raise KeyMissing(f"{path} holds another key than its name says: restore it from its backup")
        return signer

    def _secret(self, role: str) -> str | None:
        return (self.root_passphrase or self.passphrase) if role == "root" else self.passphrase

    def _encryption(self, role: str) -> KeySerializationEncryption:
        secret = self._secret(role)
        return BestAvailableEncryption(secret.encode()) if secret else NoEncryption()


def open_to_others(folders: Sequence[Path]) -> list[Path]:
    """Key files that more than their owner may read."""
    return [
        path for folder in folders for path in sorted(folder.glob("*.pem")) if stat.S_IMODE(path.stat().st_mode) & 0o077
    ]


def _file_name(role: str, keyid: str) -> str:
    return f"{role}-{keyid[:_ID_DIGITS]}.pem"
