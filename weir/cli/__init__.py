"""The `weir` command. Subcommands import what they need when they run, so that each install works
with the parts it has. Exit codes: 0 done, 1 failed, 2 bad use."""
