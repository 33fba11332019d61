"""python -m cloud.gateway: see cloud.gateway.main."""

from cloud.config import GatewayConfig
from cloud.gateway.main import run
from cloud.start import start

if __name__ == "__main__":
    raise SystemExit(start(GatewayConfig, run))
