"""The last acts: a production trace block by block, and a look at the live server.

Must not know: how outcomes are shown. Runs in the demo's main thread.
"""

from __future__ import annotations

from typing import Final

from adapter.conformance.demo.acts import Report
from adapter.conformance.demo.cast import EXACT, Engine, Server
from adapter.conformance.demo.expected import trace_blocks
from adapter.conformance.demo.libraries import heavy_libraries, libraries, process_tree
from adapter.conformance.demo.outcome import Outcome
from adapter.conformance.demo.processes import Stage
from adapter.conformance.demo.trace import BLOCK_TOKENS, NUM_REQUESTS, read_trace
from adapter.conformance.host.weights import ModelConfig, write_model_dir

PUBLISHED: Final = (2278, 13662)
"""Full blocks hit and full blocks in all of the first 500 requests, known beforehand."""


# What pages of 4 KiB for 512 tokens look like to whoever reads the model's config.json.
_MODEL: Final = ModelConfig(
    hidden_size=4,
    num_hidden_layers=1,
    num_attention_heads=1,
    num_key_value_heads=1,
    head_dim=4,
    intermediate_size=8,
)


def replay_trace(
    on: Stage, server: Server, num_requests: int, outcome: Outcome, report: Report
) -> None:
    """Send the trace through an engine that reuses nothing by itself.

    Args:
        on: The run's stage.
        server: The live server.
        num_requests: How many of the trace's first requests.
        outcome: Takes claims and figures.
        report: Told of progress.
    """
    records = read_trace(num_requests)
    expected = trace_blocks([(r.num_tokens, r.block_ids) for r in records], BLOCK_TOKENS)
    longest = max(len(record.block_ids) for record in records)
    engine = Engine(
        on,
        "engine-trace",
        model=write_model_dir(on.folder / "model-trace", _MODEL),
        url=server.url,
        num_blocks=longest + 1,
        tokens_per_block=BLOCK_TOKENS,
        settings=EXACT,
        payload=True,
    )
    counted = engine.replay(num_requests, lambda done: report(done, num_requests))
    hooks = engine.figures()
    engine.stop()
    found = (int(counted["hit_blocks"]), int(counted["full_blocks"]))
    if num_requests == NUM_REQUESTS:
        outcome.claim("the excerpt counts as its publishers' trace does", expected == PUBLISHED)
    outcome.claim(f"exactly {expected[0]:,} of {expected[1]:,} full blocks hit", found == expected)
    outcome.claim("each loaded block compared bit for bit", counted["verified_blocks"] == found[0])
    outcome.claim("the engine itself reused nothing", counted["device_blocks"] == 0)
    loaded_bytes = found[0] * engine.page_bytes
    outcome.figures |= {
        "requests": num_requests,
        "hit_blocks": found[0],
        "full_blocks": found[1],
        "hit_ratio": round(found[0] / found[1], 4),
        "expected_hit_blocks": expected[0],
        "verified_blocks": int(counted["verified_blocks"]),
        "loaded_bytes": loaded_bytes,
        "longest_hook_ms": float(hooks["longest_hook_ms"]),
        "longest_hook": str(hooks["longest_hook"]),
    }
    outcome.summary = (
        f"{found[0]:,} of {found[1]:,} blocks ({found[0] / found[1]:.4f}), "
        f"{loaded_bytes / 1e6:.1f} MB loaded"
    )


def look_at_server(server: Server, outcome: Outcome) -> None:
    """See what the live server has mapped, then end it.

    Args:
        server: The live server.
        outcome: Takes claims and figures.
    """
    pids = process_tree(server.pid)
    mapped = {pid: libraries(pid) for pid in pids}
    heavy = sorted({path for paths in mapped.values() for path in heavy_libraries(paths)})
    outcome.claim(
        "server and copier have neither torch nor CUDA mapped",
        len(pids) > 1 and all(mapped.values()) and not heavy,
    )
    exit_code = server.end()
    extents = [path for path in server.arena_dir.rglob("*") if path.is_file()]
    outcome.claim("SIGTERM ends it cleanly, its memory is given back", exit_code == 0)
    outcome.claim("no extent is left", not [path for path in extents if path.stat().st_size])
    num_libraries = len({path for paths in mapped.values() for path in paths})
    outcome.figures |= {
        "processes": len(pids),
        "libraries": num_libraries,
        "heavy_libraries": ", ".join(heavy),
        "exit_code": exit_code,
    }
    outcome.summary = f"{num_libraries} libraries in {len(pids)} processes, exit code {exit_code}"
