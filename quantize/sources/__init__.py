"""Where models come from: a catalogue, a hub, a package index, files at hand."""

from quantize.sources.errors import SourceError
from quantize.sources.resolve import Source, Sources, resolve

__all__ = ["Source", "SourceError", "Sources", "resolve"]
