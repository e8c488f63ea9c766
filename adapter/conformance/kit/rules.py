"""The table: which rules of the host's contract are checked, and by what.

Must not know: how checks work. Plain data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from adapter.conformance.kit import (
    checks_device,
    checks_hooks,
    checks_layouts,
    checks_loads,
    checks_offers,
    checks_saves,
)
from adapter.conformance.kit.bench import Bench
from adapter.conformance.kit.verdict import Verdict


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        source: section of the host contract.
        text: the rule, in a line.
        check: puts it to the test.
    """

    source: str
    text: str
    check: Callable[[Bench], Verdict]


RULES: Final = (
    Rule(
        "§9.1",
        "offers whole blocks and leaves one token",
        checks_offers.leaves_a_token_and_offers_whole_blocks,
    ),
    Rule(
        "§9.2",
        "offers nothing behind a match inside a block",
        checks_offers.declines_a_match_inside_a_block,
    ),
    Rule(
        "§9.3",
        "what is offered stays loadable",
        checks_loads.loads_what_it_offered_without_its_server,
    ),
    Rule("§9.4", "writes only the load range", checks_loads.writes_only_what_was_offered),
    Rule("§9.5", "writes behind M", checks_loads.waits_for_forwards_queued_before),
    Rule("§9.6", "saves only what was computed", checks_saves.saves_only_what_was_computed),
    Rule(
        "§9.7",
        "saves generated blocks and later chunks",
        checks_saves.saves_what_is_generated,
    ),
    Rule(
        "§9.8",
        "loads are idempotent; stale or no metadata is fine",
        checks_loads.repeats_nothing_and_takes_stale_metadata,
    ),
    Rule("§9.9", "keeps pages once, gives them back once", checks_saves.gives_every_page_back),
    Rule("§5", "never publishes a recycled page", checks_saves.survives_recycled_pages),
    Rule(
        "§9.10",
        "never blocks the executor",
        checks_hooks.never_blocks_while_its_server_hangs,
    ),
    Rule(
        "§9.11",
        "skips missing pages, keeps groups apart",
        checks_layouts.skips_missing_pages_and_keeps_groups_apart,
    ),
    Rule("§9.12", "forgets requests by itself", checks_saves.forgets_what_is_cancelled),
    Rule(
        "§9.13",
        "sets the device in its own threads",
        checks_device.sets_the_device_in_its_threads,
    ),
    Rule("§9.14", "needs no layer hooks", checks_loads.needs_no_layer_hooks),
    Rule(
        "§9.15",
        "offers nothing without block reuse",
        checks_offers.offers_nothing_without_reuse,
    ),
    Rule(
        "§9.16",
        "stores nothing that has left a window",
        checks_layouts.stores_what_its_window_still_holds,
    ),
    Rule(
        "§5",
        "loads what is taken up of an offer",
        checks_layouts.loads_what_is_taken_up_of_an_offer,
    ),
    Rule("§6", "begins anew when replayed", checks_layouts.begins_anew_when_replayed),
    Rule(
        "§3",
        "reports each asynchronous load once",
        checks_layouts.reports_each_load_once,
    ),
    Rule(
        "§3",
        "answers a repeated query alike",
        checks_offers.answers_a_repeated_query_alike,
    ),
    Rule("§3", "metadata pickles, and is small", checks_hooks.hands_over_metadata_that_pickles),
    Rule("§8", "keeps salts and adapters apart", checks_offers.keeps_tenants_apart),
    Rule(
        "§10",
        "raises nothing when its server dies",
        checks_hooks.raises_nothing_when_its_server_dies,
    ),
    Rule("§12.8", "saves behind a ragged match", checks_saves.saves_what_follows_a_ragged_match),
    Rule("§12.10", "comes up without a server", checks_hooks.comes_up_without_a_server),
    Rule(
        "§12.17",
        "supports attention data parallelism",
        checks_hooks.says_that_it_supports_attention_dp,
    ),
    Rule("§13", "answers equal those without a cache", checks_loads.shares_nothing_wrong),
)
