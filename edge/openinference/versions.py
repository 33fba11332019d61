"""What a version may be called by, and the version of a response: the one that answered, whatever was asked for.

Which version is served is looked up before a request is answered, and the weights may change in between: only an
answer knows whose it is. Token ids mean something to one release's tokenizer alone, so there another is a fault.
Pure: no sockets, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence

from wire.description import ModelInfo
from wire.errors import Conflict


def names(release: str) -> tuple[str, ...]:
    """The usual first: `1.2.0+digest`, the release's id, `1.2.0`; without one 1."""
    version = release.partition("@")[2]
    return (version, release, version.partition("+")[0]) if version else (release or "1",)


def answered(asked: str, model: ModelInfo, releases: Sequence[str]) -> str:
    """The version of answers by these releases, as it was `asked` for where that names it.

    Empty where they differ or did not say; the whole id where it is of another model, as an upstream's may be.
    """
    if len(set(releases)) != 1:
        return ""
    called = _names(releases[0], model)
    return asked if asked in called else next(iter(called), "")


def demand_one(asked: str, model: ModelInfo, releases: Sequence[str]) -> None:
    """That token ids were read by the one release they were made for. Raises Conflict."""
    if asked:
        other = next((release for release in releases if asked not in _names(release, model)), None)
    else:  # whose the ids are nobody said, but of two releases they are not
        other = next((release for release in releases if release != releases[0]), None)
    if other is not None:
        raise Conflict(
            f"the weights changed to {other or 'an unknown release'} meanwhile; token ids belong to a release's "
            "tokenizer: make them with that one's and ask again"
        )


def _names(release: str, model: ModelInfo) -> tuple[str, ...]:
    """What an answer's release may be called by; nothing where the model has one and the answer did not say."""
    if not release and model.release:
        return ()
    same = release.partition("@")[0] == model.release.partition("@")[0]
    return names(release) if same else (release,)
