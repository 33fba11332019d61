"""python -m cloud.host: see cloud.host.main."""

from cloud.config import EngineHostConfig
from cloud.host.main import run
from cloud.start import start

if __name__ == "__main__":
    raise SystemExit(start(EngineHostConfig, run))
