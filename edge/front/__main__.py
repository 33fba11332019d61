"""`python -m edge.front JSON`: the front process. Started by the launcher."""

from __future__ import annotations

import os
import sys

from runtime.child import begin

if __name__ == "__main__":
    begin()
    from edge.config import EdgeConfig
    from edge.front.main import run

    sys.exit(run(EdgeConfig.from_json(sys.argv[1], os.environ)))
