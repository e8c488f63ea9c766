import json
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ConfigError
from server.simulate import traces
from server.simulate.traces import read

DATA = Path(__file__).parent / "data"


def line(**changes: Any) -> str:
    row = {"timestamp": 1500, "input_length": 700, "output_length": 1, "hash_ids": [3, 9]}
    return json.dumps({**row, **changes})


def session(*requests: dict[str, Any], **changes: Any) -> str:
    return json.dumps({"id": "x", "block_size": 64, "requests": list(requests), **changes})


def said(path: Path, block_tokens: int | None = None) -> str:
    with pytest.raises(ConfigError) as error:
        read([path], block_tokens)
    return error.value.message


def test_mooncakes_lines_become_prompts(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(line() + "\n\n" + line(timestamp=500, hash_ids=[3, 4]) + "\n")
    trace = read([file])
    assert [prompt.at_s for prompt in trace.prompts] == [0.5, 1.5]
    assert [prompt.tokens for prompt in trace.prompts] == [700, 700]
    assert [prompt.blocks for prompt in trace.prompts] == [(0, 2), (0, 1)]
    assert (trace.block_tokens, trace.num_blocks, trace.num_files) == (512, 3, 1)
    assert trace.num_sessions == 2
    assert trace.seconds == 1.0


def test_an_id_after_another_prefix_is_another_block(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(line(hash_ids=[3, 9]) + "\n" + line(hash_ids=[4, 9]) + "\n")
    first, second = read([file]).prompts
    assert not set(first.blocks) & set(second.blocks)


def test_sessions_are_merged_by_time_and_share_no_ids(tmp_path: Path) -> None:
    late = {"t": 4.0, "in": 130, "hash_ids": [1, 2]}
    (tmp_path / "b.json").write_text(session({"t": 1.0, "in": 70, "hash_ids": [1]}, late))
    (tmp_path / "a.json").write_text(session({"t": 1.0, "in": 63, "hash_ids": []}, late))
    (tmp_path / "notes.txt").write_text("no trace")
    trace = read([tmp_path])
    assert [(p.at_s, p.session, p.tokens) for p in trace.prompts] == [
        (1.0, 0, 63),
        (1.0, 1, 70),
        (4.0, 0, 130),
        (4.0, 1, 130),
    ]
    assert not set(trace.prompts[2].blocks) & set(trace.prompts[3].blocks)
    assert trace.prompts[3].blocks[:1] == trace.prompts[1].blocks
    assert trace.num_blocks == 4


def test_a_conversation_that_goes_on_is_one_session(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    more = line(input_length=1200, hash_ids=[3, 9, 10])
    file.write_text("\n".join([line(), more, line(hash_ids=[3, 5])]))
    numbers = [prompt.session for prompt in read([file]).prompts]
    assert numbers[0] == numbers[1] != numbers[2]


def test_the_excerpts_are_read() -> None:
    sessions = read([DATA / "sessions"])
    assert (sessions.num_files, sessions.num_sessions, len(sessions.prompts)) == (8, 8, 104)
    assert len(read([DATA / "conversation_first_200.jsonl"]).prompts) == 200


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", ":2: column 2: Expecting property name"),
        ("[1]", ":2: no JSON object"),
        (line(timestamp=None), ":2: 'timestamp' is no number"),
        (line(timestamp=True), ":2: 'timestamp' is no number"),
        (line(timestamp=float("nan")), ":2: 'timestamp' is nan"),
        (line(timestamp=-1), ":2: 'timestamp' is -1"),
        (line(timestamp=10**400), ":2: "),
        (line(input_length="7"), ":2: 'input_length' is no whole number"),
        (line(input_length=0), ":2: 'input_length' is 0"),
        (line(input_length=1 << 30), ":2: 'input_length' is 1073741824"),
        (line(hash_ids=[1]), ":2: 1 hash_ids for 700 tokens; blocks of 512 tokens make 2"),
        (line(hash_ids=[1, 2.5]), ":2: 'hash_ids' is no list of whole numbers"),
        (line(hash_ids={}), ":2: 'hash_ids' is no list of whole numbers"),
        ('{"a":' + "[" * 200_000, ":2: JSON that is too deep"),
        ('{"timestamp":' + "9" * 5000 + "}", ":2: "),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(line() + "\n" + text + "\n")
    message = said(file)
    assert message.startswith(f"{file}{expected}")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{\n1", ": line 2 column 1: Expecting property name"),
        ("[]", ": no JSON object"),
        (session(block_size=0), ": 'block_size' is 0"),
        (session(requests=7), ": 'requests' is no list"),
        (session(), ": no request in it"),
        (session({"t": 0, "in": 64, "hash_ids": [1]}, {"t": 0}), ": request 2: 'in' is no whole"),
        (session({"t": "a", "in": 64, "hash_ids": [1]}), ": request 1: 't' is no number"),
        (session({"t": 0, "in": 200, "hash_ids": [1]}), ": request 1: 1 hash_ids for 200 tokens"),
    ],
)
def test_a_bad_session_is_named(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "a.json"
    file.write_text(text)
    assert said(file).startswith(f"{file}{expected}")


def test_a_request_that_is_no_object_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('{"block_size": 64, "requests": [3]}')
    assert said(file) == f"{file}: request 1: no JSON object"


def test_files_that_are_none_are_named(tmp_path: Path) -> None:
    assert said(tmp_path / "none.jsonl") == f"{tmp_path}/none.jsonl: no such file"
    assert said(tmp_path) == f"{tmp_path}: no .jsonl or .json file in this folder"
    other = tmp_path / "a.csv"
    other.write_text("")
    assert said(other).startswith(f"{other}: neither .jsonl")
    for name in ("a.jsonl", "a.json"):
        (tmp_path / name).write_bytes(b"\xff\xfe")
        assert "not UTF-8" in said(tmp_path / name)


def test_blocks_of_two_sizes_are_not_mixed(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(line())
    (tmp_path / "b.json").write_text(session({"t": 0, "in": 64, "hash_ids": [1]}))
    assert "b.json: its blocks have 64 tokens, those of" in said(tmp_path)
    assert "and --block-tokens says 32" in said(tmp_path / "b.json", 32)
    assert "blocks of 16 tokens make 44" in said(tmp_path / "a.jsonl", 16)
    assert read([tmp_path / "a.jsonl"], 350).block_tokens == 350


def test_the_documented_block_is_the_default() -> None:
    assert traces.MOONCAKE_BLOCK_TOKENS == 512
