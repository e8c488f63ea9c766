"""The table: which rules of the host's contract are checked, and by what.

Must not know: how checks work. Plain data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from adapter.conformance.kit import (
    checks_device,
    checks_epochs,
    checks_hooks,
    checks_identity,
    checks_layouts,
    checks_loads,
    checks_offers,
    checks_pools,
    checks_ranks,
    checks_saves,
    checks_suite,
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
    Rule(
        "§9.3",
        "what is offered stays loadable on every rank",
        checks_ranks.loads_what_it_offered_on_every_rank,
    ),
    Rule("§9.4", "writes only the load range", checks_loads.writes_only_what_was_offered),
    Rule("§9.5", "writes behind M", checks_loads.waits_for_forwards_queued_before),
    Rule("§9.6", "saves only what was computed", checks_saves.saves_only_what_was_computed),
    Rule("§9.7", "saves generated blocks and later chunks", checks_saves.saves_what_is_generated),
    Rule(
        "§9.8",
        "loads are idempotent; stale or no metadata is fine",
        checks_loads.repeats_nothing_and_takes_stale_metadata,
    ),
    Rule("§9.9", "keeps pages once, gives them back once", checks_saves.gives_every_page_back),
    Rule("§9.10", "never blocks the executor", checks_hooks.never_blocks_while_its_server_hangs),
    Rule(
        "§9.11",
        "skips missing pages, keeps groups apart",
        checks_layouts.skips_missing_pages_and_keeps_groups_apart,
    ),
    Rule("§9.12", "forgets requests by itself", checks_saves.forgets_what_is_cancelled),
    Rule("§9.12", "takes late, empty page lists", checks_epochs.takes_late_empty_page_lists),
    Rule(
        "§9.13", "sets the device in its own threads", checks_device.sets_the_device_in_its_threads
    ),
    Rule("§9.14", "needs no layer hooks", checks_loads.needs_no_layer_hooks),
    Rule("§9.14", "keeps no process from ending", checks_epochs.leaves_no_threads),
    Rule("§9.15", "offers nothing without block reuse", checks_offers.offers_nothing_without_reuse),
    Rule(
        "§9.16",
        "stores nothing that has left a window",
        checks_layouts.stores_what_its_window_still_holds,
    ),
    Rule("§1", "serves every epoch", checks_epochs.serves_every_epoch),
    Rule("§3", "answers in the interface's types", checks_epochs.answers_in_the_interfaces_types),
    Rule("§3", "answers a repeated query alike", checks_offers.answers_a_repeated_query_alike),
    Rule(
        "§3", "takes pages it was not asked about", checks_epochs.takes_pages_it_was_not_asked_about
    ),
    Rule("§3", "metadata pickles, and is small", checks_hooks.hands_over_metadata_that_pickles),
    Rule("§3", "takes batches without requests", checks_epochs.takes_batches_without_requests),
    Rule("§3", "reports each asynchronous load once", checks_layouts.reports_each_load_once),
    Rule("§3", "saves no rejected drafts", checks_pools.saves_no_rejected_drafts),
    Rule(
        "§3",
        "has all of prefix reservations, or none",
        checks_epochs.has_all_of_prefix_reservations_or_none,
    ),
    Rule(
        "§4", "comes up behind an estimation of memory", checks_epochs.comes_up_behind_an_estimation
    ),
    Rule("§5", "never publishes a recycled page", checks_saves.survives_recycled_pages),
    Rule(
        "§5",
        "outlives an idle executor",
        checks_saves.outlives_an_idle_executor,
    ),
    Rule(
        "§5",
        "loads what is taken up of an offer",
        checks_layouts.loads_what_is_taken_up_of_an_offer,
    ),
    Rule("§5", "reports every id on every rank", checks_ranks.reports_every_id_on_every_rank),
    Rule(
        "§5",
        "serves unequal ranks of attention data parallelism",
        checks_ranks.serves_unequal_ranks,
    ),
    Rule(
        "§5",
        "starts loads twice in one iteration",
        checks_ranks.starts_loads_again_in_one_iteration,
    ),
    Rule("§6", "begins anew when replayed", checks_layouts.begins_anew_when_replayed),
    Rule("§6", "begins anew after a reset", checks_layouts.takes_resets),
    Rule("§6", "begins anew after a direct preemption", checks_layouts.takes_direct_preemption),
    Rule("§6", "ends cancelled loads", checks_epochs.ends_cancelled_loads),
    Rule("§6", "stores context-only requests", checks_epochs.stores_context_only_requests),
    Rule("§8", "keeps salts and adapters apart", checks_offers.keeps_tenants_apart),
    Rule("§8", "keeps media apart", checks_identity.keeps_media_apart),
    Rule("§8", "keeps degrees of parallelism apart", checks_ranks.keeps_degrees_apart),
    Rule(
        "§10",
        "raises nothing when its server dies",
        checks_hooks.raises_nothing_when_its_server_dies,
    ),
    Rule("§12.2", "loads a part of a prompt", checks_loads.loads_a_part_of_a_prompt),
    Rule("§12.8", "saves behind a ragged match", checks_saves.saves_what_follows_a_ragged_match),
    Rule("§12.9", "does not wait for forwards", checks_hooks.does_not_wait_for_forwards),
    Rule("§12.10", "comes up without a server", checks_hooks.comes_up_without_a_server),
    Rule("§12.11", "keeps instances apart", checks_identity.keeps_instances_apart),
    Rule("§12.13", "takes pools it cannot export", checks_pools.takes_pools_it_cannot_export),
    Rule("§12.14", "reads the shape of its pool", checks_pools.reads_the_shape_of_its_pool),
    Rule("§12.14", "shares heads between ranks", checks_ranks.shares_heads_between_ranks),
    Rule(
        "§12.15", "keeps models and formats apart", checks_identity.keeps_models_and_formats_apart
    ),
    Rule("§12.16", "hits only what every rank holds", checks_ranks.hits_only_what_every_rank_holds),
    Rule(
        "§12.17",
        "supports attention data parallelism",
        checks_hooks.says_that_it_supports_attention_dp,
    ),
    Rule("§13", "answers equal those without a cache", checks_loads.shares_nothing_wrong),
    Rule("§13", "random schedules, one rank", checks_suite.plays_alone),
    Rule("§13", "random schedules, tensor parallel", checks_suite.plays_tensor_parallel),
    Rule("§13", "random schedules, attention data parallel", checks_suite.plays_attention_dp),
)
