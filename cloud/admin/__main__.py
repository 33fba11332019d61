"""python -m cloud.admin: see cloud.admin.main."""

from cloud.admin.main import run
from cloud.config import AdminConfig
from cloud.start import start

if __name__ == "__main__":
    raise SystemExit(start(AdminConfig, run))
