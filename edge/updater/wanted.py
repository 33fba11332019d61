"""Which release a node should serve. Pure: what is offered, here, asked for and known to be bad; out comes one id.

In this order: the operator's pin; what the upstream says is active, so that the whole site moves together;
the newest that is offered or here. A release that proved bad is never wanted, and one that was withdrawn
only by a pin. When what is asked for cannot be had, what is in force stays, and it is said why.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from release.trust.catalogue import precedence


@dataclass(frozen=True, slots=True)
class Known:
    """Of one model: versions of releases by id, offered and on this node, and what speaks against some."""

    offered: Mapping[str, str]
    here: Mapping[str, str]
    withdrawn: Collection[str]
    bad: Mapping[str, str]
    current: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """`release` is empty where there is none; `why` asked for it; `refused` says what was asked for in vain."""

    release: str
    why: str = ""
    refused: str = ""


def wanted(known: Known, pin: str = "", active: str = "") -> Wanted:
    """The release to fetch and serve."""
    if pin:
        return _asked(known, pin, "the operator pinned it")
    if active:
        return _asked(known, active, "the upstream's active release")
    candidates = {
        release: version
        for release, version in {**known.here, **known.offered}.items()
        if release not in known.bad and release not in known.withdrawn
    }
    newest = max(candidates, key=lambda release: (precedence(candidates[release]), release), default="")
    if not newest:
        return Wanted(known.current, "nothing else is offered")
    return Wanted(newest, "the newest that is offered")


def _asked(known: Known, release: str, why: str) -> Wanted:
    if release in known.bad:
        return Wanted(known.current, why, f"{release} was tried and is bad here: {known.bad[release]}")
    if release in known.offered or release in known.here:
        return Wanted(release, why)
    return Wanted(known.current, why, f"{release} is neither offered to this node nor on it")
