"""`python -m cloud.admin [--config FILE]`: settings from the file's [admin] and WEIR_ADMIN__<KEY>."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cloud.admin.main import run
from cloud.config import AdminConfig
from runtime.child import die_with_parent
from runtime.config import ConfigError, load


def main() -> int:
    die_with_parent()
    parser = argparse.ArgumentParser(prog="python -m cloud.admin", description=__doc__)
    parser.add_argument("--config", type=Path, help="a TOML file with an [admin] table")
    try:
        config = load(AdminConfig, parser.parse_args().config).value
    except ConfigError as error:
        print(f"weir admin: {error}", file=sys.stderr)  # noqa: T201
        return 2
    return run(config)


if __name__ == "__main__":
    sys.exit(main())
