"""Where metadata comes from: one Protocol, and a repository that lies in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from release.objects import is_metadata, object_digest
from release.trust.errors import Absent, FetchFailed, TooLong


class Fetch(Protocol):
    """Gets a file of a repository by its path, such as `metadata/timestamp.json`.

    Raises Absent when the source says that it has none, FetchFailed when it cannot be asked, TooLong
    when more than `most_bytes` come; must stop reading there, since a source may send for ever.
    """

    def __call__(self, path: str, most_bytes: int) -> bytes: ...


class FolderSource:
    """A repository in a folder, as a Fetch: a mounted disk, a mirror, or a node's own store."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, path: str, most_bytes: int) -> bytes:
        if not is_metadata(path) and object_digest(path) is None:
            raise Absent(f"{path} is no path of a repository")
        file = self._folder / path
        try:
            with file.open("rb") as handle:
                content = handle.read(most_bytes + 1)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise Absent(f"{file} does not exist") from error
        except OSError as error:
            raise FetchFailed(f"{file} cannot be read: {error.strerror}") from error
        if len(content) > most_bytes:
            raise TooLong(f"{file} is longer than the {most_bytes} bytes it may have")
        return content
