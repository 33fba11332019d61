"""`weir bench …`: measurements that anyone can repeat; each prints one JSON object with the keys its page names.

Data sets come from `--data` or `WEIR_DATA`: set but missing is an error, unset is said visibly.
"""

from __future__ import annotations

import typer

from weir.cli.bench_transfer import transfer

bench = typer.Typer(name="bench", no_args_is_help=True, help="Measurements of this machine and these models.")
bench.command()(transfer)
