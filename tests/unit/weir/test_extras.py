"""What the command line looks for in an install is what the packaging promises."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from weir.cli.extras import EXTRAS, MissingExtra, missing, require

_PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"
# Wanted by one kind of engine only, which says so itself.
_OPTIONAL = {"bitsandbytes"}


def promised(extra: str) -> set[str]:
    requirements = tomllib.loads(_PYPROJECT.read_text())["project"]["optional-dependencies"][extra]
    return {re.split(r"[ >=<;\[]", text)[0].lower() for text in requirements} - _OPTIONAL


@pytest.mark.parametrize("extra", sorted(EXTRAS))
def test_an_extra_is_looked_for_as_the_packaging_names_it(extra: str) -> None:
    known = metadata.packages_distributions()
    looked_for = {known[module][0].lower().replace("_", "-") for module in EXTRAS[extra]}
    assert looked_for == promised(extra)


def test_everything_is_here_where_the_tests_run() -> None:
    assert [name for extra in EXTRAS for name in missing(extra)] == []


def test_a_missing_module_is_named_with_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTRAS, "edge", ("numpy", "no_such_module"))  # type: ignore[arg-type]
    with pytest.raises(MissingExtra, match=r"no_such_module.*pip install 'weir-inference\[edge\]'"):
        require("edge", "weir edge serve")
    require("edge", "weir edge serve", "no_such_module")
