"""Which versions a node has seen, read from its own metadata: what a restored repository must be brought past.

The figures are not verified here: they come from a node of the operator's own, and `recover` bounds how
far they may lead.
"""

from __future__ import annotations

from tuf.api.metadata import Snapshot, Timestamp

from release.repository.record import Versions
from release.trust.errors import Absent
from release.trust.source import Fetch
from release.trust.workflow import MOST_BYTES, MOST_ROTATIONS, parse


def seen_at(fetch: Fetch) -> tuple[Versions, dict[int, bytes]]:
    """A node's versions and its roots by number. Raises TrustError."""
    timestamp = parse(
        Timestamp, fetch("metadata/timestamp.json", MOST_BYTES["timestamp"]), "the node's timestamp"
    ).signed
    number = timestamp.snapshot_meta.version
    content = fetch(f"metadata/{number}.snapshot.json", MOST_BYTES["snapshot"])
    snapshot = parse(Snapshot, content, "the node's snapshot").signed
    roots = _roots(fetch)
    versions = Versions(
        max(roots, default=0), timestamp.version, snapshot.version, snapshot.meta["targets.json"].version
    )
    return versions, roots


def _roots(fetch: Fetch) -> dict[int, bytes]:
    """A node has its roots from the pinned one on: the first of them has to be looked for."""
    found: dict[int, bytes] = {}
    for version in range(1, MOST_ROTATIONS + 1):
        try:
            found[version] = fetch(f"metadata/{version}.root.json", MOST_BYTES["root"])
        except Absent:
            if found:
                break
    return found
