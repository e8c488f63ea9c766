"""How a host behaves where real hosts differ by version or configuration.

Must not know: any other part of the host but the epoch's name. Plain data.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from adapter.conformance.host.reports import Epoch

Probe = Callable[[str, tuple[int, ...]], None]
"""Called on the executor's thread as ``probe(point, request_ids)``. Points, in the
order of an iteration: ``"queried"`` (an offer was honoured, pages allocated),
``"bound"`` (metadata bound, loads not yet started), ``"forward"`` (inside the
guarded forward: raising here is a forward that raises), ``"launched"`` (after
``wait_for_save``), ``"iteration"`` (the end, after ``get_finished``)."""

Layout = Literal["v1", "v2"]
Regions = Literal["joined", "apart"]
DeviceName = Literal["host", "simulated"]

CONFORMANCE_DEVICE: Final = "TRTLLM_CONFORMANCE_DEVICE"
"""Environment variable: the device of hosts whose options name none, so that a whole suite of
tests runs on another one."""


def default_device() -> DeviceName:
    """What the environment says, host memory if nothing."""
    return "simulated" if os.environ.get(CONFORMANCE_DEVICE) == "simulated" else "host"


@dataclass(frozen=True)
class HostOptions:
    """Switches of the conformance host.

    Attributes:
        epoch: Interface epoch (host contract §1). E1: five-field reports, integer
            salt on the request, page callbacks interleaved with queries,
            ``request_finished`` on cancellation, no ``wait_for_initialization``.
            E3: a raising hook is fatal wherever it is (§10), attention DP. E4: polls
            while idle, ignores unknown ids, waits for a running load when its request
            is cancelled, calls ``cancel_load``, ``request_reset`` and ``shutdown``.
        layout: ``v1``: one tensor. ``v2`` (E3, E4): layer groups, pages per chunk.
        regions: How a V2 cache lies in memory (§7). ``joined``: one region per group, without
            gaps. ``apart``: K and V apart, ``size`` below ``stride``, a base inside the span.
        tokens_per_block: In place of the arguments' behind their back, as some attention
            backends do (§2); None keeps to them.
        private_pool: The pool is memory no other process can map (managed memory,
            granules without a handle; §7).
        device: Where the pool lies and what runs the work. ``host``: host memory and threads.
            ``simulated``: simulated CUDA, each rank on a device of its own; V1 pools are one
            allocation or, if private, managed memory; V2 caches are virtual memory. By default what
            ``CONFORMANCE_DEVICE`` says.
        salt_as_id: Early E2's integer ``cache_salt_id`` in place of the text.
        overlap: The overlap scheduler, on by default as in the real host.
        cuda_graphs: Batches that compute one token per request run without layer
            hooks, as replayed graphs do.
        capture_logits: Keep each generated token's logits in the result.
        error_budget: Failed forwards survived with overlap off.
        call_shutdown: Call the connectors' ``shutdown`` where they have one, in any epoch.
        late_trim: Report prompt chunks before they are cut to a block boundary, as older
            executors do: ``num_scheduled_tokens`` may be overstated (§5, step 6).
        skip_forward: Asked with the iteration's number; True skips its forward after
            loads were started, as attention DP does (host contract §5, §9 rule 8).
        num_drafts: Draft tokens verified per generated token (§3).
        one_call_more: Early E1 with the overlap scheduler: a request is computed once more after
            its last token, so that every hook is called once more (§5).
        estimate_kv: Run the memory estimation of bring-up first, on a pool and an
            executor without the connector (§4, step 4).
        direct_preemption: Preempt by ``request_finished`` in place of ``request_reset`` (E4,
            V2): True defers it until the pages are saved (§6).
        aggressive: The connector is asked in the scheduling pass, its offers are settled later or
            never (E4, V2; §5). On if the arguments' ``aggressive_prefix_budgeting`` says so.
        load_skew: Iterations by which this rank's completions count later than the
            connector reports them: ranks differ (§5).
        load_deadline_s: Longest wait for a load that empties a rank's batch under
            attention DP, and for the loads of cancelled requests at shutdown.
        grace_s: Longest such wait under attention DP once a stop or a cancel was asked for.
        probe: Sees each iteration pass; for tests that act at an exact point.
        stream_timeout_s: Longest wait for the device before the host gives up;
            the real host's hang detector.
    """

    epoch: Epoch = "E2"
    layout: Layout = "v1"
    regions: Regions = "joined"
    tokens_per_block: int | None = None
    private_pool: bool = False
    device: DeviceName = field(default_factory=default_device)
    salt_as_id: bool = False
    overlap: bool = True
    cuda_graphs: bool = False
    capture_logits: bool = True
    error_budget: int = 3
    call_shutdown: bool = False
    late_trim: bool = False
    skip_forward: Callable[[int], bool] | None = None
    num_drafts: int = 0
    one_call_more: bool = False
    estimate_kv: bool = False
    direct_preemption: bool = False
    aggressive: bool = False
    load_skew: int = 0
    load_deadline_s: float = 60.0
    grace_s: float = 5.0
    probe: Probe | None = None
    stream_timeout_s: float = 300.0

    @property
    def headroom(self) -> int:
        """Tokens that may be computed behind a request's last one, whose samples do not count."""
        return max(self.num_drafts, int(self.one_call_more)) if self.overlap else 0

    @property
    def hooks_are_fatal(self) -> bool:
        """Whether any raising hook ends the engine (E3 after attention DP came; §10)."""
        return self.epoch in ("E3", "E4")
