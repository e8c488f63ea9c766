"""docs/quickstart.md, run: its configuration, its script, its commands, the messages it names."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from adapter.config import make_kv_connector_config
from adapter.serverurl import FILE_KEYS, resolve_server_url
from server.asking import stats
from tests.repository import tree
from tests.wire.process import ROOT, ServerProcess

PAGE = tree.text("docs/quickstart.md")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)


def test_the_yaml_names_what_the_function_names_and_what_can_be_imported() -> None:
    [text] = blocks("yaml")
    fields = dict(line.strip().split(": ") for line in text.splitlines()[1:])
    made = make_kv_connector_config()
    assert fields == {name: getattr(made, name) for name in fields}
    module = importlib.import_module(fields["connector_module"])
    assert isinstance(getattr(module, fields["connector_scheduler_class"]), type)
    assert isinstance(getattr(module, fields["connector_worker_class"]), type)


def test_the_order_in_which_the_server_is_looked_for_is_the_described_one(tmp_path: Path) -> None:
    names = re.findall(r"^\| .*?`([A-Z_a-z]+)`", PAGE[PAGE.index("## Where the adapter") :], re.M)
    assert names[:4] == [
        "server_url",
        "TRTLLM_KVKEEP_SERVER_URL",
        "LMCACHE_SERVER_URL",
        "server_url",
    ]
    assert FILE_KEYS == ("server_url", "remote_url")
    file = tmp_path / "lmcache.yaml"
    file.write_text("remote_url: ipc:///remote\nserver_url: ipc:///file\n")
    environ = {
        "TRTLLM_KVKEEP_SERVER_URL": "ipc:///own",
        "LMCACHE_SERVER_URL": "ipc:///lmcache",
        "LMCACHE_CONFIG_FILE": str(file),
    }

    class Args:
        kv_connector_config = make_kv_connector_config("ipc:///configured")

    assert resolve_server_url(Args, environ).url == "ipc:///configured"
    for name, url in zip(environ, ("own", "lmcache", "file"), strict=True):
        assert resolve_server_url(None, environ).url == f"ipc:///{url}"
        environ = {key: value for key, value in environ.items() if key != name}


def test_the_messages_it_names_exist() -> None:
    code = "\n".join(tree.text(p) for p in tree.files("server", "protocol", suffix=".py"))
    code = re.sub(r'"\s*\n\s*f?"', "", code) + tree.text("Makefile")
    table = PAGE[PAGE.index("## When it does not start") :]
    for message in re.findall(r"^\| `([^`]+)`", table, re.M):
        for part in re.split(r"…|: | 'server' ", message.replace("l1-size=", "")):
            assert part.strip() in code, message


@pytest.mark.torch
def test_the_script_hits_the_second_time(short_dir: Path, shm_dir: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = next(text for text in blocks("python") if "HostEngine" in text)
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "hit.py").write_text(script)
    with ServerProcess(short_dir, shm_dir / "a", "--l1-size", "256M") as server:
        environ = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TRTLLM_KVKEEP_SERVER_URL": server.url,
            "TRTLLM_KVKEEP_QUERY_BUDGET_MS": "1000",  # two busy cores must not make it a miss
        }
        said = [
            subprocess.run(
                [sys.executable, "build/hit.py"],
                cwd=tmp_path,
                env=environ,
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            )
            for _ in range(2)
        ]
        assert stats(server.side_path, 10.0)["hit_chunks"] == 6
    assert [done.stdout.split()[0] for done in said] == ["0", "192"]
    for done, numbers in zip(said, ("=0 new_matched=0", "=192 new_matched=192"), strict=True):
        assert f"`lmcache_cached{numbers}`" in PAGE.replace("\n", " ")
        assert f"lmcache_cached{numbers}" in done.stderr


def test_the_packages_that_the_wheel_adds_are_named() -> None:
    named = {re.split(r"[><=]", text)[0] for text in tree.array("dependencies")}
    [told] = re.findall(r"needs a compiler: ([^.]*)\.", re.sub(r"\s+", " ", PAGE))
    assert set(re.findall(r"[a-z-]{3,}", told.replace(" and ", " "))) == named
