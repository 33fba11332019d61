"""What deploy/ says must exist in the code: commands, ports, settings, versions, locks."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from cloud.config import AdminConfig, EngineHostConfig, GatewayConfig
from edge.config import EdgeConfig
from runtime.config import Section, load
from weir.cli.main import app, main

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
PORTS = {"edge": {"8080", "50051"}, "gateway": {"50061", "8081"}, "admin": {"8090"}, "engine": {"50071"}}
ROLES = tuple(PORTS)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    document = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert isinstance(document, dict)
    return document


def stages(dockerfile: str) -> dict[str, list[str]]:
    """The instructions of each stage, continuation lines joined, comments gone; the last also as ''."""
    lines = [line for line in (DEPLOY / dockerfile).read_text().splitlines() if not line.lstrip().startswith("#")]
    found: dict[str, list[str]] = {}
    name = ""
    for instruction in "\n".join(lines).replace("\\\n", " ").splitlines():
        if instruction.startswith("FROM "):
            _, _, name = instruction.partition(" AS ")
            found[name] = []
        elif instruction.strip() and found:
            found[name].append(instruction)
    found[""] = found[name]
    return found


def role_stage(role: str) -> list[str]:
    if role == "edge":
        return stages("edge.Dockerfile")[""]
    cloud = stages("cloud.Dockerfile")
    return cloud["base"] + cloud[role]


def argument(instructions: list[str], name: str) -> str:
    return next(line.removeprefix(f"{name} ") for line in reversed(instructions) if line.startswith(f"{name} "))


@pytest.mark.parametrize("role", ROLES)
def test_the_commands_are_ones_the_cli_has(role: str, compose: dict[str, Any]) -> None:
    in_image = re.findall(r'"([^"]+)"', argument(role_stage(role), "CMD"))
    assert compose["services"][role]["command"] == in_image
    assert argument(role_stage(role), "ENTRYPOINT") == '["weir"]'
    assert main([*in_image, "--help"]) == 0
    assert main([*in_image[:1], "no-such-command"]) != 0, "or the line above proves nothing"


def test_what_prepare_runs_the_cli_has(compose: dict[str, Any]) -> None:
    script = compose["services"]["prepare"]["command"][0].replace("\\\n", " ")
    commands = re.findall(r"^\s*weir (\S+)(.*)$", script, re.MULTILINE)
    assert [command for command, _ in commands] == ["pull", "quantize"]
    known = typer.main.get_group(app).commands
    for command, arguments in commands:
        options = {option for parameter in known[command].params for option in parameter.opts}
        assert set(re.findall(r"--[a-z-]+", arguments)) <= options


@pytest.mark.parametrize("role", ROLES)
def test_ports_are_those_of_the_design_everywhere(role: str, compose: dict[str, Any]) -> None:
    service = compose["services"][role]
    assert set(argument(role_stage(role), "EXPOSE").split()) == PORTS[role]
    published = [entry.split(":") for entry in service.get("ports", [])]
    assert all(host == "127.0.0.1" and outer == inner for host, outer, inner in published)
    assert {inner for *_, inner in published} | set(service.get("expose", [])) == PORTS[role]
    kinds: dict[str, tuple[type[Section], tuple[str, ...]]] = {
        "edge": (EdgeConfig, ("http_address", "grpc_address")),
        "gateway": (GatewayConfig, ("address", "http_address")),
        "engine": (EngineHostConfig, ("address",)),
        "admin": (AdminConfig, ("address",)),
    }
    kind, fields = kinds[role]
    assert {kind.model_fields[name].default.rpartition(":")[2] for name in fields} == PORTS[role]
    probe = str(service["healthcheck"]["test"])
    assert any(port in probe for port in PORTS[role])
    assert service["healthcheck"]["test"][1:] == re.findall(r'"([^"]+)"', argument(role_stage(role), "HEALTHCHECK"))


@pytest.mark.parametrize("kind", [EdgeConfig, GatewayConfig, EngineHostConfig, AdminConfig])
def test_the_example_settings_load(kind: type[Section], monkeypatch: pytest.MonkeyPatch) -> None:
    if kind is AdminConfig:
        monkeypatch.setenv("WEIR_ADMIN__TOKEN", "0123456789abcdef")
    loaded = load(kind, DEPLOY / "weir.toml")
    table = tomllib.loads((DEPLOY / "weir.toml").read_text())[kind.section]
    assert {key for key, origin in loaded.origin.items() if origin.startswith("file ")} == set(table)


def test_the_example_settings_name_services_of_the_compose_file(compose: dict[str, Any]) -> None:
    settings = tomllib.loads((DEPLOY / "weir.toml").read_text())
    assert set(settings) == set(ROLES)
    targets = [settings["edge"]["upstream"], *settings["gateway"]["engines"]]
    for host, _, port in (target.partition(":") for target in targets):
        assert port in PORTS[host]
        assert host in compose["services"]
    stores = {settings[role]["store_url"] for role in ("gateway", "admin")}
    assert stores == {"redis://redis:6379/0"}, "gateway and admin must share one store"
    assert settings["edge"]["upstream_model"] == settings["gateway"]["default_model"] == settings["engine"]["name"]


def test_the_edge_image_holds_nothing_of_the_cloud() -> None:
    instructions = "\n".join(line for stage in stages("edge.Dockerfile").values() for line in stage)
    for name in ("torch", "cloud", "gateway", "redis", "transformers", "quantize"):
        assert name not in instructions
    locked = re.findall(r"^([a-z0-9_.-]+)==", (ROOT / "requirements" / "edge.lock").read_text(), re.MULTILINE)
    assert "onnxruntime" in locked
    assert not {"torch", "transformers", "redis", "bitsandbytes", "onnx", "scikit-learn"} & set(locked)


def test_gateway_and_admin_come_without_torch() -> None:
    cloud = stages("cloud.Dockerfile")
    assert not any("torch" in line.lower() for line in cloud["light"])
    for role in ("gateway", "admin"):
        assert any(line.startswith("COPY --from=light ") for line in cloud[role])
    locked = (ROOT / "requirements" / "gateway.lock").read_text()
    assert "\nredis==" in locked and "transformers" not in locked and "onnxruntime" not in locked


def test_torch_is_the_pinned_one_and_its_index_is_the_builders_choice() -> None:
    text = (DEPLOY / "cloud.Dockerfile").read_text()
    pinned = re.search(r'"(torch==[^"]+)"', (ROOT / "pyproject.toml").read_text())
    assert pinned is not None
    assert re.findall(r"torch==[\d.]+", text) == [pinned[1]]
    assert 'ARG TORCH_INDEX=""' in text
    for file in DEPLOY.iterdir():
        hosts = re.findall(r"https?://([^/\s'\"]+)", file.read_text())
        assert all(host.startswith("127.0.0.1") for host in hosts), f"{file.name} names {hosts}"


@pytest.mark.parametrize("dockerfile", ["edge.Dockerfile", "cloud.Dockerfile"])
def test_every_file_an_image_copies_reaches_its_builder(dockerfile: str) -> None:
    text = (DEPLOY / dockerfile).read_text()
    for lock in re.findall(r"requirements/\S+\.lock", text):
        assert (ROOT / lock).is_file()
    sent = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"}
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert set(packages["packages"]) <= sent
    assert {"pyproject.toml", "README.md", "LICENSE", "requirements/*.lock"} <= sent


def test_every_service_is_bounded_and_unprivileged(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"]
        assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory"}
        assert service["logging"]["options"]["max-size"]
        assert name == "prepare" or service["healthcheck"]["test"]
    assert compose["services"]["redis"]["user"] == "redis"
    for role in ROLES:
        assert argument(role_stage(role), "USER") == "10001"


def test_the_edge_reaches_the_gateway_and_nothing_behind_it(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert compose["networks"]["cloud"]["internal"]
    reach = {name for name, service in services.items() if set(service["networks"]) & set(services["edge"]["networks"])}
    assert reach == {"edge", "gateway"}
    assert "gateway" not in services["edge"]["depends_on"], "the edge answers alone, too"


def test_the_token_comes_from_outside(compose: dict[str, Any]) -> None:
    assert compose["services"]["admin"]["environment"]["WEIR_ADMIN__TOKEN"].startswith("${WEIR_ADMIN_TOKEN:?")
    assert "token" not in tomllib.loads((DEPLOY / "weir.toml").read_text())["admin"]
