"""Where models come from: a catalogue, a hub, a package index, files at hand. Start at resolve.resolve."""
