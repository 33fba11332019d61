"""python -m cloud.rank: see cloud.rank.main."""

from cloud.rank.main import main

if __name__ == "__main__":
    raise SystemExit(main())
