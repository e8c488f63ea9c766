"""Files of namespaces: whole or not there, proved by their fingerprint, else not believed."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from protocol import codec
from protocol.ids import Fingerprint
from protocol.namespace import LayerGroup, Namespace, fingerprint
from server.shell import namespacefiles

NAMESPACE = Namespace(
    model_id="example/model@1",
    config_digest=b"c" * 32,
    weights_digest=b"w" * 32,
    host_version="1.0.0",
    kv_dtype="float32",
    attention_backend="TRTLLM",
    kv_layout="NHD",
    overrides={"rope": "yarn"},
    tokens_per_block=16,
    num_ranks=2,
    groups=(LayerGroup(layers=(0, 1), page_bytes=4096), LayerGroup(layers=(2,), page_bytes=512)),
)
NAME = fingerprint(NAMESPACE)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / namespacefiles.FOLDER).mkdir()
    return tmp_path


def folder(directory: Path) -> Path:
    return directory / namespacefiles.FOLDER


def test_what_was_kept_is_read_again_until_it_is_dropped(directory: Path) -> None:
    namespacefiles.keep(str(directory), NAME, NAMESPACE)
    namespacefiles.keep(str(directory), NAME, NAMESPACE)
    assert namespacefiles.read(str(directory)) == ({NAME: NAMESPACE}, {})
    assert [path.name for path in folder(directory).iterdir()] == [NAME.hex()]
    namespacefiles.drop(str(directory), NAME)
    namespacefiles.drop(str(directory), NAME)
    assert namespacefiles.read(str(directory)) == ({}, {})


def test_what_is_no_namespace_is_named_and_not_believed(directory: Path) -> None:
    whole = codec.bytes_from_struct(NAMESPACE)
    other = msgspec.structs.replace(NAMESPACE, model_id="example/model@2")
    bad = {
        "1" * 32: whole[:-1],
        "2" * 32: b"",
        "3" * 32: os.urandom(500),
        "4" * 32: whole,  # not its fingerprint
        "5" * 32: b"x" * ((1 << 20) + 1),
    }
    for name, data in bad.items():
        (folder(directory) / name).write_bytes(data)
    (folder(directory) / ("6" * 32)).mkdir()
    (folder(directory) / ("7" * 32)).symlink_to("/etc/hostname")
    os.mkfifo(folder(directory) / ("8" * 32))
    (folder(directory) / "note").write_text("not named like one")
    (folder(directory) / f"{NAME.hex()}.new").write_bytes(whole[:10])
    namespacefiles.keep(str(directory), fingerprint(other), other)
    found, refused = namespacefiles.read(str(directory))
    assert found == {fingerprint(other): other}
    assert {Path(path).name for path in refused} == {str(n) * 32 for n in range(1, 9)}


def test_a_file_that_cannot_be_written_leaves_nothing(directory: Path) -> None:
    (folder(directory) / f"{NAME.hex()}.new").mkdir()
    with pytest.raises(OSError, match="directory"):
        namespacefiles.keep(str(directory), NAME, NAMESPACE)
    assert namespacefiles.read(str(directory)) == ({}, {})
    with pytest.raises(FileNotFoundError):
        namespacefiles.keep(str(directory / "missing"), NAME, NAMESPACE)


def test_the_fingerprint_is_compared_whole(directory: Path) -> None:
    wrong = Fingerprint(NAME[:-1] + bytes([NAME[-1] ^ 1]))
    namespacefiles.write_whole(
        str(folder(directory) / wrong.hex()), codec.bytes_from_struct(NAMESPACE)
    )
    found, refused = namespacefiles.read(str(directory))
    assert found == {}
    assert list(refused.values()) == ["no namespace of its fingerprint"]
