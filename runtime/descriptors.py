"""How many files and sockets this process may have open: as many as the system lets it ask for, within reason."""

from __future__ import annotations

import resource

_ENOUGH = 65536


def allow_all() -> int:
    """Raises the soft limit to the hard one, and returns what is allowed now. Child processes inherit it.

    The usual soft limit of 1024 is for programs that call select(), which none of ours does.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _ENOUGH
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return soft
