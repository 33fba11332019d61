"""Why offered metadata was not believed, as one small tree.

    TrustError               root
    ├── FetchFailed          the source did not answer, or broke off: nothing is known to be wrong, try again
    │   └── Absent           the source says that it has no such file
    ├── TooLong              more bytes than such a file may have: endless data
    ├── Malformed            truncated, not JSON, too deep, another role, or another version of the format
    ├── WrongSignature       not signed by enough of the keys that the trusted root names
    ├── Damaged              other bytes than the signed length and hash promise
    ├── Replayed             older than what was verified before
    ├── MixedMetadata        each part is signed, but they do not belong together
    ├── Expired              good once, but no longer: a frozen repository, or one that nobody refreshed
    │   └── ClockWrong       so long past that this box's clock is the likelier fault
    └── BadRoot              the trusted root itself cannot be used

Every message says what is wrong and what to do. None of these stops serving: the last verified
catalogue stays known. Must not import tuf, so that any caller can catch them.
"""

from __future__ import annotations

from release.errors import ReleaseError


class TrustError(ReleaseError):
    """Metadata was refused."""


class FetchFailed(TrustError):
    """A source did not give a file."""


class Absent(FetchFailed):
    """A source has no such file."""


class TooLong(TrustError):
    """A source sent more than such a file may hold."""


class Malformed(TrustError):
    """Not metadata of the kind that was asked for."""


class WrongSignature(TrustError):
    """Not signed by those who may."""


class Damaged(TrustError):
    """Not the bytes that were signed for."""


class Replayed(TrustError):
    """Older than what is known."""


class MixedMetadata(TrustError):
    """Parts of different states of a repository."""


class Expired(TrustError):
    """Past its date."""


class ClockWrong(Expired):
    """Past its date by so much that the clock is doubted."""


class BadRoot(TrustError):
    """The trusted root is no root, or not of this repository."""
