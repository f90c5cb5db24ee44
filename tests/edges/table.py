"""The edges of every public option, tool policy and event: which test shows what happens there.

A cell names a test (file::function, below tests/), or says after a dash why the edge does not apply. Rows that the same
tests cover stand together. `test_table` keeps it complete, and every name in it true."""

COLUMNS = ("zero", "one", "huge", "none", "unicode", "concurrent", "cancelled", "killed", "resumed", "offline")

Cells = tuple[str, str, str, str, str]
"""Of the last five columns."""

# What a value of the first five columns does. One test goes through all of them, row by row.
VALUES = {
    "option": "unit/api/test_option_edges.py::test_a_run_option_accepts_an_edge_value_or_rejects_it_by_name",
    "tool": "unit/api/test_option_edges.py::test_a_tool_option_accepts_an_edge_value_or_rejects_it_by_name",
    "batch": "unit/api/test_option_edges.py::test_a_batching_option_accepts_an_edge_value_or_rejects_it_by_name",
    "endpoint": "unit/pools/test_pool_edges.py::test_an_endpoint_accepts_an_edge_value_or_rejects_it_by_name",
    "pool": "unit/pools/test_pool_edges.py::test_a_pool_accepts_an_edge_value_or_rejects_it_by_name",
    "event": "- an event is no value that a user gives",
}

# What the counts of inputs, prompts and agents do at zero, one and very many, at every entry point.
COUNTS = {
    "run": "unit/api/test_count_edges.py::test_run_accepts_any_number_of_inputs",
    "stream": "unit/api/test_count_edges.py::test_stream_accepts_any_number_of_inputs",
    "run_sync": "unit/api/test_count_edges.py::test_run_sync_accepts_any_number_of_inputs",
    "stream_sync": "unit/api/test_stream_sync.py::test_no_inputs_and_one",
    "run_with_reduce_sync": "unit/api/test_stream_sync.py::test_no_inputs_and_one",
    "run_with_map_reduce_sync": "unit/api/test_stream_sync.py::test_runs_with_a_reduce_have_a_blocking_form",
    "run_with_reduce": "unit/api/test_count_edges.py::test_run_with_reduce_accepts_any_number_of_inputs",
    "run_with_map_reduce": "unit/api/test_count_edges.py::test_run_with_map_reduce_accepts_any_number_of_items",
    "control": "unit/api/test_control.py::test_a_change_of_nothing_or_by_a_wrong_value_is_refused",
    "replay": "unit/api/test_count_edges.py::test_a_checkpoint_of_any_number_of_inputs_is_resumed_and_replayed",
    "lint": "unit/api/test_count_edges.py::test_lint_and_plan_accept_any_number_of_inputs",
    "plan": "unit/api/test_count_edges.py::test_lint_and_plan_accept_any_number_of_inputs",
    "preview": "unit/api/test_preview.py::test_no_inputs_and_one_can_be_previewed",
    "preview_sync": "unit/api/test_preview.py::test_no_inputs_and_one_can_be_previewed",
    "score": "unit/api/test_scores.py::test_any_number_of_results_can_be_scored",
    "score_sync": "unit/api/test_scores.py::test_any_number_of_results_can_be_scored",
    "copy_run": "unit/cluster/redis/test_run_copy.py::test_a_run_of_any_number_of_inputs_is_copied",
    "map": "live/test_ray_data.py::test_a_dataset_may_have_no_row_and_one",
    "work": "- it takes no inputs",
    "Flow": "unit/api/test_count_edges.py::test_a_flow_accepts_any_number_of_inputs",
    "VLLMPool": "unit/pools/test_pool_edges.py::test_a_pool_answers_no_prompt_and_one",
    "command line": "unit/cli/test_command_edges.py::test_one_input_goes_through_every_command",
    "very many": "unit/api/test_count_edges.py::test_nothing_is_kept_of_100_000_lazy_inputs_but_their_keys",
}

_CANCEL = "engine/test_leaving_early.py::test_cancelling_run_from_outside_leaves_no_task_behind"
_KILL = "unit/api/test_kill.py::test_a_run_killed_repeatedly_loses_no_result"
_RESUME = "unit/api/test_resume.py::test_a_finished_run_is_read_back_without_a_request"
_AWAY = "engine/test_outages.py::test_a_lasting_outage_stops_the_run_with_one_error_that_has_the_results"
_EVENTS = "engine/test_event_edges.py::test_events_are_consistent_at_the_end_and_after_a_resume"
_EVENTS_KILLED = (
    "engine/test_event_edges.py::test_the_event_log_of_a_killed_run_is_consistent_and_a_resume_appends_to_it"
)
_STOPS = "unit/api/test_stops.py::test_after_a_graceful_stop_and_a_resume_every_write_was_made_once"
_KILL_9 = "unit/api/test_stops.py::test_after_sigkill_only_entered_writes_are_unknown"

OPTIONS: dict[str, Cells] = {
    # What is asked.
    "task inputs output_schema model backend system_prompt tool_mode strip_preamble extra stop seed "
    "temperature top_p": (
        "engine/test_result_stream.py::test_two_tasks_may_share_one_stream",
        _CANCEL,
        _KILL,
        "unit/api/test_resume.py::test_a_changed_task_is_requested_again",
        _AWAY,
    ),
    "images": (
        "- images are read by one agent, and sharing is the server's",
        _CANCEL,
        "unit/api/test_images.py::test_a_resumed_run_sends_nothing_for_images_that_are_the_same",
        "unit/api/test_images.py::test_a_changed_image_is_asked_about_again",
        "unit/api/test_images.py::test_an_image_that_changes_before_it_is_sent_is_an_error_of_its_agent",
    ),
    "limit sample sample_seed where input_format encoding key": (
        "- inputs are chosen before the first agent",
        _CANCEL,
        _KILL,
        "unit/plan/test_row_keys.py::test_rows_may_be_reordered_and_added_between_runs",
        "unit/data/test_download.py::test_a_download_that_fails_is_one_clear_error",
    ),
    "samples": (
        "unit/api/test_samples.py::test_samples_of_one_input_are_sent_one_after_the_other",
        _CANCEL,
        _KILL,
        "unit/api/test_samples.py::test_more_samples_with_the_same_checkpoint_only_add_the_missing_ones",
        "unit/api/test_samples.py::test_a_finished_run_with_samples_needs_no_server",
    ),
    "models": (
        "unit/api/test_scores.py::test_several_models_answer_every_input",
        "unit/api/test_scores.py::test_leaving_a_run_of_several_models_ends_all_of_them",
        _KILL,
        "unit/api/test_scores.py::test_several_models_answer_every_input",
        "unit/api/test_scores.py::test_a_model_that_is_not_there_ends_the_run_with_one_error",
    ),
    "score": (
        "unit/api/test_scores.py::test_answers_are_scored_as_they_arrive",
        _CANCEL,
        _KILL,
        "unit/api/test_scores.py::test_a_resumed_run_does_not_judge_again",
        "unit/api/test_scores.py::test_a_judge_that_cannot_be_reached_leaves_the_answers_in_the_checkpoint",
    ),
    "tools runtime": (
        "unit/tools/test_sharing.py::test_a_thousand_agents_that_read_ten_documents_read_each_once",
        "engine/test_leaving_early.py::test_leaving_a_stream_early_cancels_running_tools",
        _KILL_9,
        "unit/api/test_resume.py::test_an_interrupted_agent_repeats_only_its_unfinished_calls",
        "unit/tools/mcp/test_mcp_session.py::test_a_server_that_is_unavailable_for_now_is_no_failed_tool",
    ),
    # Where it is kept.
    "checkpoint_dir plan_changed retry_failed on_result out": (
        "unit/api/test_resume.py::test_two_runs_on_one_checkpoint_at_once_are_refused",
        "unit/api/test_resume.py::test_a_run_that_was_left_early_keeps_finished_results",
        _KILL,
        _RESUME,
        "engine/test_outages.py::test_a_run_stopped_by_an_outage_resumes_from_its_checkpoint",
    ),
    # How much at once, and how long.
    "log_requests": (
        "unit/api/test_log_requests.py::test_the_stages_of_a_flow_share_a_file",
        _CANCEL,
        "unit/api/test_log_requests.py::test_a_killed_process_leaves_lines_that_can_be_read",
        "unit/api/test_log_requests.py::test_the_file_is_private_and_appended_to_also_behind_a_torn_line",
        "unit/api/test_log_requests.py::test_a_connection_that_drops_and_a_timeout_have_lines_without_a_status",
    ),
    "tokens": (
        "unit/api/test_tokens.py::test_agents_with_tools_keep_the_ids_of_the_engine",
        _CANCEL,
        _KILL,
        "unit/api/test_tokens.py::test_a_resumed_run_keeps_the_tokens_of_both",
        "unit/api/test_tokens.py::test_a_turn_that_was_retried_is_kept_once",
    ),
    "max_inflight max_concurrent max_agents max_dispatched priority backpressure_ceiling calibrate_backend": (
        "engine/test_slots.py::test_the_slot_limit_is_never_exceeded_and_every_agent_ends",
        "engine/test_leaving_early.py::test_leaving_a_stream_early_ends_agents_that_wait_for_a_retry_or_a_slot",
        _KILL,
        "engine/test_slots.py::test_a_resumed_agent_that_waits_for_its_tools_releases_its_first_slot",
        _AWAY,
    ),
    "rpm tpm": (
        "engine/test_pace.py::test_agents_keep_to_the_options_without_a_refusal",
        "unit/engine/test_paced_slots.py::test_a_slot_granted_to_a_cancelled_agent_gives_its_time_to_the_next",
        "- a minute begins anew with the process",
        "unit/engine/test_paced_slots.py::test_requests_wait_for_their_time_without_a_slot",
        "engine/test_pace.py::test_retries_count",
    ),
    "fallback": (
        "engine/test_fallback.py::test_agents_that_fail_on_one_backend_are_run_by_the_next",
        "engine/test_fallback.py::test_leaving_a_run_with_a_fallback_leaves_nothing_behind",
        _KILL,
        "engine/test_fallback.py::test_a_resumed_run_pays_for_nothing_twice",
        "engine/test_fallback.py::test_a_server_that_cannot_be_reached_is_left_out",
    ),
    "lane": (
        "engine/test_lane_flex.py::test_the_slot_limit_holds_in_flex",
        "engine/test_lane_auto.py::test_leaving_a_run_in_lane_auto_leaves_nothing_behind",
        _KILL,
        "engine/test_lane_auto.py::test_a_run_in_lane_auto_is_interrupted_and_resumed_without_paying_twice",
        "engine/test_lane_flex.py::test_without_capacity_turns_fall_back_after_a_while_and_not_each_one_anew",
    ),
    "timeout_per_agent timeout_per_turn timeout_per_tool deadline": (
        "engine/test_deadlines.py::test_each_deadline_scope_ends_at_its_own_deadline",
        "engine/test_deadlines.py::test_a_cancellation_at_the_very_moment_of_the_deadline_is_not_swallowed",
        "- a clock begins anew with the process",
        "unit/api/test_stops.py::test_agents_that_time_out_before_their_write_started_make_it_after_a_resume",
        "engine/test_run_deadline.py::test_a_retry_after_pause_ends_at_the_deadline",
    ),
    "max_retries backoff backoff_max": (
        "engine/test_retries.py::test_occasional_server_failures_fail_no_agent_and_cost_little_time",
        "engine/test_leaving_early.py::test_leaving_a_stream_early_ends_agents_that_wait_for_a_retry_or_a_slot",
        "- tries are counted anew by the next process",
        "unit/api/test_resume.py::test_an_agent_that_failed_because_of_the_model_starts_over",
        "engine/test_outages.py::test_max_retries_determines_how_long_a_dead_server_is_waited_for",
    ),
    "max_turns max_tokens max_tool_tokens context_tokens oversized compact_at compact_with compact_model streaming "
    "streaming_tool_dispatch": (
        "engine/test_slots.py::test_the_slot_limit_is_never_exceeded_and_every_agent_ends",
        _CANCEL,
        _KILL,
        "unit/api/test_resume.py::test_an_interrupted_agent_resumes_from_its_last_fact",
        _AWAY,
    ),
    # What prompts share.
    "shared_results": (
        "unit/api/test_shared_results.py::test_workers_of_a_shared_run_use_one_order",
        _CANCEL,
        _KILL,
        "unit/api/test_shared_results.py::test_a_resumed_run_sends_the_prompts_that_an_uninterrupted_one_would_have_sent",
        _AWAY,
    ),
    "cache_salt warm_prefix hoist reorder strict_prefix kvflow": (
        "engine/test_slots.py::test_new_agents_wait_behind_agents_that_return_from_their_tools",
        _CANCEL,
        _KILL,
        "unit/api/test_resume.py::test_reordered_and_added_inputs_find_finished_agents",
        _AWAY,
    ),
    "tool_cache_mb tool_cache_dir predictive_prewarm": (
        "unit/tools/test_sharing.py::test_calls_that_overlap_and_are_the_same_are_one_execution",
        "unit/tools/test_disk_cache.py::test_making_calls_ahead_is_called_off_with_the_run",
        "unit/tools/test_disk_cache.py::test_a_cache_that_breaks_in_mid_run_costs_nothing_but_itself",
        "unit/tools/test_disk_cache.py::test_results_of_a_pure_tool_are_reused_by_a_later_run",
        "- a cache is a folder of this machine",
    ),
    # What it may cost.
    "max_total_tokens max_usd prices": (
        "engine/test_budget_races.py::test_no_mix_of_faults_makes_a_run_exceed_its_budget",
        "unit/api/test_budget.py::test_cancelled_and_resumed_runs_together_stay_within_the_budget",
        "unit/api/test_budget.py::test_a_run_stopped_repeatedly_stays_within_its_budget",
        "engine/test_budgets.py::test_spent_tokens_are_kept_across_runs_of_a_checkpoint",
        "unit/api/test_budget.py::test_a_resend_beyond_the_budget_is_not_made",
    ),
    # Who works on it.
    "cluster workers store run_id lease": (
        "engine/test_event_edges.py::test_every_agent_of_a_shared_run_has_one_finished_event_at_the_submitter",
        "unit/cluster/test_worker_processes.py::test_a_worker_that_is_stopped_returns_its_leases_at_once",
        "unit/cluster/test_worker_processes.py::test_a_killed_worker_and_a_killed_redis_lose_and_repeat_nothing",
        "unit/api/test_stops.py::test_a_stopped_and_resumed_shared_run_makes_every_write_once",
        "unit/cluster/redis/test_outages.py::test_a_lasting_redis_outage_is_an_error",
    ),
}

TOOL_POLICIES: dict[str, Cells] = {
    "name description max_tokens summarize history_arg": (
        "unit/tools/test_executor.py::test_calls_run_at_the_same_time_and_answer_in_order",
        "unit/tools/test_executor.py::test_cancelling_an_agent_cancels_its_calls",
        _KILL_9,
        "unit/api/test_exactly_once.py::test_a_resumed_agent_has_the_writes_of_its_history",
        "- a tool is a function of this process",
    ),
    "effect idempotent idempotency_arg": (
        "unit/tools/test_sharing.py::test_stateful_calls_and_writes_are_never_shared",
        _STOPS,
        "unit/api/test_exactly_once.py::test_a_write_with_an_idempotency_key_is_repeated_with_the_same_key",
        "unit/api/test_exactly_once.py::test_a_resumed_run_has_the_same_idempotency_keys",
        "- a tool is a function of this process",
    ),
    "placement": (
        "unit/api/test_shared_results.py::test_workers_of_a_shared_run_use_one_order",
        _CANCEL,
        _KILL,
        "unit/api/test_shared_results.py::test_a_resumed_run_sends_the_prompts_that_an_uninterrupted_one_would_have_sent",
        _AWAY,
    ),
    "cacheable ttl version keeps_errors": (
        "unit/tools/test_sharing.py::test_a_thousand_agents_that_read_ten_documents_read_each_once",
        "unit/tools/test_sharing.py::test_a_leader_that_is_cancelled_leaves_the_result_to_the_others",
        "- what is shared is in memory, and gone with the process",
        "unit/tools/test_disk_cache.py::test_results_of_a_pure_tool_are_reused_by_a_later_run",
        "unit/tools/test_sharing.py::test_a_version_that_cannot_be_told_means_that_nothing_is_shared",
    ),
    "timeout": (
        "unit/tools/test_call_timeouts.py::test_a_follower_has_its_own_time_and_the_leader_its_own_end",
        "unit/tools/test_write_claims.py::test_a_write_that_does_not_end_in_time_after_a_stop_is_left_unknown",
        _KILL_9,
        "unit/api/test_exactly_once.py::test_a_write_interrupted_by_the_agent_timeout_is_left_unknown",
        "unit/tools/test_executor.py::test_however_many_tools_hang_there_is_a_thread_for_the_next",
    ),
    "max_concurrent rate_limit burst rate_key": (
        "unit/tools/test_throttle.py::test_in_no_stretch_of_time_do_more_begin_than_burst_and_rate_allow",
        "unit/tools/test_throttle.py::test_a_tool_slot_granted_to_a_cancelled_call_is_not_lost",
        _KILL_9,
        _STOPS,
        "unit/tools/test_throttle.py::test_a_rate_key_that_fails_is_a_result",
    ),
    "retries retry_on backoff": (
        "unit/tools/test_throttle.py::test_the_tries_of_a_shared_call_serve_all_who_wait",
        "unit/tools/test_throttle.py::test_a_call_that_is_given_up_is_not_tried_again",
        "- tries are counted anew by the next process",
        "unit/tools/test_throttle.py::test_a_write_that_is_tried_again_keeps_its_key",
        "unit/tools/test_throttle.py::test_an_error_that_may_pass_is_tried_again_and_others_are_not",
    ),
}

BATCH_POLICIES: dict[str, Cells] = {
    "key_arg max_batch window": (
        "unit/tools/test_call_batch.py::test_a_thousand_calls_are_ten_executions_of_a_hundred",
        "unit/tools/test_call_batch.py::test_a_batch_without_callers_is_cancelled",
        _KILL_9,
        _STOPS,
        "- a tool is a function of this process",
    ),
}

_NOT_KEPT = "- a pool keeps nothing"
ENDPOINT: dict[str, Cells] = {
    "host port tags fields scheme base": (
        "unit/pools/test_pool.py::test_concurrent_calls_do_not_mix_their_answers",
        "- it is never changed",
        "- it is never changed",
        _NOT_KEPT,
        "unit/pools/test_dispatcher.py::test_an_endpoint_that_was_down_at_the_start_gets_work_when_it_is_back",
    ),
}
POOL: dict[str, Cells] = {
    "endpoints model max_tokens max_tokens_aggregation use_batch timeout raw prompts_per_endpoint patience sampling "
    "log_requests": (
        "unit/pools/test_pool.py::test_concurrent_calls_do_not_mix_their_answers",
        "unit/pools/test_pool.py::test_a_call_that_is_cancelled_leaves_nothing_behind",
        "unit/pools/test_dispatcher.py::test_answers_of_an_endpoint_that_dies_are_kept_and_the_rest_is_sent_once_elsewhere",
        _NOT_KEPT,
        "unit/pools/test_dispatcher.py::test_all_down_is_one_clear_error_for_each_after_a_while",
    ),
}

_SHARED_EVENTS = "engine/test_event_edges.py::test_every_agent_of_a_shared_run_has_one_finished_event_at_the_submitter"
_KILLED_VIEW = "unit/observe/report/test_run_view.py::test_running_segments_of_a_killed_process_end_with_it"
EVENTS: dict[str, Cells] = {
    "RunStarted AgentStarted TurnStarted TurnEnded CallsStarted CallsEnded AgentFinished SchedulingReported "
    "BudgetReported ToolsUsed": (
        _SHARED_EVENTS,
        _EVENTS,
        _EVENTS_KILLED,
        _EVENTS,
        _AWAY,
    ),
    "RequestRetried Paused Resumed LimitChanged": (
        "unit/observe/test_several_workers.py::test_the_pause_metric_is_set_until_no_worker_pauses",
        "engine/test_leaving_early.py::test_leaving_a_stream_early_ends_agents_that_wait_for_a_retry_or_a_slot",
        _KILLED_VIEW,
        "unit/observe/report/test_run_view.py::test_limits_and_pauses_are_told_with_their_times",
        "engine/test_retries.py::test_every_retry_is_an_event_with_its_reason_and_delay",
    ),
    "EndpointChanged": (
        "unit/api/test_endpoints_come_and_go.py::test_a_drained_endpoint_finishes_its_requests_and_gets_no_other",
        "- it has no cancellation of its own",
        "unit/observe/report/test_run_view.py::test_endpoints_that_joined_and_left_are_told_with_their_times",
        "unit/observe/report/test_run_view.py::test_endpoints_that_joined_and_left_are_told_with_their_times",
        "unit/api/test_endpoints_come_and_go.py::test_an_endpoint_that_dies_and_is_removed_loses_only_what_was_in_flight",
    ),
    "Steered": (
        "unit/api/test_control.py::test_requests_at_the_same_time_are_all_applied",
        "unit/api/test_control.py::test_a_cancelled_agent_stays_cancelled_in_the_next_run",
        "unit/cli/commands/test_ctl.py::test_what_was_acknowledged_is_kept_however_the_run_is_killed",
        "unit/observe/report/test_run_view.py::test_what_the_user_changed_is_told_with_its_time_and_added_inputs_are_expected",
        "- it does not depend on the backend",
    ),
    "Notice LoadSampled PrefixReported": (
        "unit/observe/test_several_workers.py::test_every_view_shows_how_full_a_backend_is_of_all_workers",
        _EVENTS,
        _EVENTS_KILLED,
        "unit/observe/report/test_run_view.py::test_a_run_that_is_resumed_counts_every_agent_once",
        _AWAY,
    ),
    "AgentReassigned WorkerEvent": (
        _SHARED_EVENTS,
        "unit/cluster/events/test_publisher_and_relay.py::test_a_worker_that_leaves_or_is_silent_has_no_running_agents",
        "unit/cluster/events/test_publisher_and_relay.py::test_an_agent_that_moves_to_another_worker_leaves_the_first_and_finishes_once",
        "unit/cluster/events/test_publisher_and_relay.py::test_a_later_submitter_sees_agents_that_were_already_running",
        "unit/cluster/events/test_publisher_and_relay.py::test_late_events_of_a_disconnected_worker_do_not_take_an_agent_back",
    ),
    "FlowStarted ItemQueued StageEvent": (
        "unit/observe/report/test_run_view.py::test_a_later_stage_has_as_many_as_have_come_to_it",
        "engine/test_flow_ends.py::test_a_cancelled_flow_leaves_no_task_behind",
        "unit/api/test_flow_kill.py::test_a_flow_killed_repeatedly_repeats_no_finished_work",
        "unit/api/test_flow_kill.py::test_a_flow_killed_repeatedly_repeats_no_finished_work",
        "engine/test_flow_ends.py::test_a_backend_that_dies_ends_the_flow_with_one_error",
    ),
    "CallbackFailed": (
        "engine/test_flow_ends.py::test_a_function_that_raises_for_many_items_is_logged_once",
        "- it is emitted at once, or not at all",
        "- it is emitted at once, or not at all",
        "engine/test_flow_ends.py::test_functions_that_raise_are_reported_and_counted_per_stage",
        "- a callback is a function of this process",
    ),
}

SECTIONS: dict[str, dict[str, Cells]] = {
    "option": OPTIONS,
    "tool": TOOL_POLICIES,
    "batch": BATCH_POLICIES,
    "endpoint": ENDPOINT,
    "pool": POOL,
    "event": EVENTS,
}
