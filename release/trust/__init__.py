"""What a node believes about releases: the client side of TUF. Needs the package `tuf`; `errors` does not."""
