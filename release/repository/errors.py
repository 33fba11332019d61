"""What can go wrong on the publisher's side, as one small tree.

    RepositoryError          root
    ├── NoRepository         the folder holds no repository, or what it holds is not signed by its keys
    ├── KeyMissing           a private key that is needed is not here, cannot be opened, or lies open to others
    ├── NotFit               the release may not be published as it is
    ├── Restored             the repository is older than what its keys have signed: it came from a backup
    ├── Busy                 somebody else is publishing
    └── ClockDoubtful        this box's clock does not fit what was signed last

Must not import tuf.
"""

from __future__ import annotations

from release.errors import ReleaseError


class RepositoryError(ReleaseError):
    """Publishing did not happen."""


class NoRepository(RepositoryError):
    """No repository that these keys know."""


class KeyMissing(RepositoryError):
    """A private key is not at hand."""


class NotFit(RepositoryError):
    """The release does not meet what is asked of a published one."""


class Restored(RepositoryError):
    """The repository went back in time."""


class Busy(RepositoryError):
    """The repository is locked."""


class ClockDoubtful(RepositoryError):
    """The time cannot be signed."""
