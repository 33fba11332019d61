"""A signed repository of releases in a folder: keys, publishing, refreshing, rotation, recovery.

The publisher's side of release.trust. Needs the package `tuf`; `errors` does not.
"""
