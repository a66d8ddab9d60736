"""Each report: its number, where it was seen, what went wrong, and the tests that try it here.

`RIGHT`: the right answer is tested. `REFUSED`: tested to be refused with a sentence. `OTHER`: it cannot happen
here, or cannot be tried on this kind of machine; the note says why.
"""

from typing import NamedTuple

RIGHT, REFUSED, OTHER = "right", "refused", "not applicable"
CASES = "engine/test_cases.py"
FINISH = "engine/test_finish.py"
OPTIONS = "engine/test_options.py"
PARITY = "engine/test_parity.py"
NEIGHBOURS = "engine/test_neighbours.py"
STEERED = "engine/test_control_requests.py"
FRONT_END = "unit/test_front_end.py"
PREFLIGHT = "unit/test_preflight.py"
VOCAB = "unit/test_draft_vocab.py"


class Case(NamedTuple):
    """One report."""

    number: str
    seen_in: str
    fault: str
    outcome: str
    tests: tuple[str, ...] = ()
    note: str = ""


def _case(number: str, seen_in: str, fault: str, outcome: str, *tests: str, note: str = "") -> Case:
    return Case(number, seen_in, fault, outcome, tests, note)


CATALOGUE = [
    _case(
        "B01",
        "SGLang #23802",
        "a stop string early in an accepted run is missed",
        RIGHT,
        f"{FINISH}::test_stop_strings",
        f"{NEIGHBOURS}::test_ends",
    ),
    _case(
        "B03",
        "SGLang #33758",
        "tokens follow an accepted EOS",
        RIGHT,
        f"{FINISH}::test_eos_inside_an_accepted_run",
        f"{CASES}::test_b03_nothing_follows_eos_when_length_is_near",
        f"{NEIGHBOURS}::test_ends",
    ),
    _case(
        "B04",
        "vLLM #47616",
        "ids and logprobs go on past a stop string",
        RIGHT,
        f"{CASES}::test_b04_ids_and_logprobs_end_with_the_stop_string",
        f"{NEIGHBOURS}::test_logprobs",
    ),
    _case(
        "B06",
        "koboldcpp #1276",
        "drafted tokens after EOS are streamed",
        RIGHT,
        f"{CASES}::test_b06_no_chunk_after_the_end",
    ),
    _case(
        "B07",
        "openvino.genai #3293",
        "a guessed EOS that is rejected ends the request",
        RIGHT,
        f"{CASES}::test_b07_a_wrong_guess_of_eos_ends_nothing",
    ),
    _case(
        "B09",
        "SGLang #26185",
        "EOS or stop honoured before min_new_tokens",
        RIGHT,
        f"{FINISH}::test_min_new_tokens",
        f"{CASES}::test_b09_a_stop_string_waits_for_min_new_tokens",
    ),
    _case(
        "B10",
        "SGLang #31972",
        "min_new_tokens without an EOS id kills the batch",
        RIGHT,
        "unit/test_plugin_requests.py::test_min_new_tokens_without_an_eos_id",
    ),
    _case(
        "B11", "vLLM #19482", "min_tokens ignored while verifying", RIGHT, f"{CASES}::test_b11_min_new_tokens_is_exact"
    ),
    _case(
        "B12",
        "llama.cpp #10174",
        "draft = target returns one token",
        RIGHT,
        f"{CASES}::test_b12_a_short_request_gets_all_its_tokens",
        f"{PARITY}::test_every_guess_of_the_target_itself_is_accepted",
    ),
    _case("B13", "own", "ignore_eos with EOS in accepted runs", RIGHT, f"{FINISH}::test_eos_ignored"),
    _case(
        "B15",
        "SGLang #9599",
        "a prompt near the context limit kills the server",
        RIGHT,
        "engine/test_case_limits.py::test_b15_prompts_up_to_the_context_limit",
        "engine/test_case_limits.py::test_b15_text_up_to_the_context_limit",
    ),
    _case(
        "B17",
        "SGLang #9388, vLLM #57941",
        "the draft's context is shorter than the target's",
        RIGHT,
        "engine/test_case_limits.py::test_b17_b18_across_the_drafts_limit",
    ),
    _case(
        "B18",
        "vLLM #7859",
        "the draft's limit is crossed while decoding",
        RIGHT,
        "engine/test_case_limits.py::test_b17_b18_across_the_drafts_limit",
    ),
    _case(
        "B20",
        "LM Studio #499",
        "the draft ignores the configured context length",
        RIGHT,
        "engine/test_case_limits.py::test_b17_b18_across_the_drafts_limit",
    ),
    _case("B21", "own", "empty prompts", RIGHT, f"{CASES}::test_b21_empty_prompts_behave_as_without_guesses"),
    _case("B22", "SGLang #31214", "sampling options are ignored while verifying", RIGHT, "engine/test_law.py"),
    _case(
        "B24",
        "dflash #74",
        "the draft ignores the temperature of its q",
        RIGHT,
        "law/test_chain_law.py::test_law_is_the_targets",
    ),
    _case(
        "B25",
        "vLLM #5313, mlx-lm #1423",
        "greedy text differs from the target's",
        RIGHT,
        f"{PARITY}::test_a_batch_says_what_the_plain_engine_says",
        f"{CASES}::test_b25_long_answers_are_the_same_tokens",
        note="fp32",
    ),
    _case(
        "B26",
        "llama.cpp #27975",
        "answers get worse with a draft",
        RIGHT,
        f"{PARITY}::test_a_batch_says_what_the_plain_engine_says",
        note="equal tokens leave no room for worse answers; no item set was run",
    ),
    _case(
        "B27",
        "vLLM #6038",
        "a request's seed is ignored",
        RIGHT,
        f"{CASES}::test_b27_seeds",
        f"{OPTIONS}::test_a_seed_repeats_whatever_the_draft_length",
    ),
    _case(
        "B29",
        "TensorRT-LLM #19487",
        "requests without a seed share one random stream",
        RIGHT,
        f"{OPTIONS}::test_unseeded_samples_differ",
    ),
    _case(
        "B30", "vLLM #17509", "ranks of tp=2 accept different counts", OTHER, note="needs two devices; never started"
    ),
    _case(
        "B32",
        "own",
        "mixed batches",
        RIGHT,
        f"{OPTIONS}::test_greedy_requests_beside_sampled_ones_keep_their_text",
        f"{NEIGHBOURS}::test_a_batch_whose_requests_differ_in_everything",
    ),
    _case("B33", "vLLM #18902", "frequency_penalty does nothing", RIGHT, f"{CASES}::test_b33_a_frequency_penalty_acts"),
    _case(
        "B35",
        "SGLang #21258",
        "repetition_penalty=0 gives NaN",
        REFUSED,
        f"{CASES}::test_b35_an_impossible_penalty_is_refused",
    ),
    _case(
        "B36",
        "vLLM #38202",
        "logit_bias is ignored",
        RIGHT,
        f"{CASES}::test_b36_a_bias_acts_at_every_position",
        f"{NEIGHBOURS}::test_mixed_options",
    ),
    _case(
        "B37",
        "SGLang #26330",
        "a custom logit processor is passed over",
        REFUSED,
        f"{CASES}::test_b37_a_custom_processor_is_refused_or_obeyed",
        note="where the server allows them, such requests run without guesses",
    ),
    _case(
        "B39",
        "Transformers #40976",
        "the draft's temperature is hidden",
        RIGHT,
        "unit/test_config.py::test_every_knob_says_what_it_is",
        note="knob draft_temperature",
    ),
    _case(
        "B41",
        "SGLang #10660",
        "only the first token has a logprob",
        RIGHT,
        f"{CASES}::test_b41_every_sampled_token_has_its_logprob",
        f"{NEIGHBOURS}::test_logprobs",
    ),
    _case(
        "B42",
        "vLLM #17876",
        "logprobs are 0",
        RIGHT,
        f"{FINISH}::test_logprobs_of_every_token",
        f"{CASES}::test_b42_top_logprobs_are_probabilities",
        f"{NEIGHBOURS}::test_logprobs",
    ),
    _case(
        "B44", "own", "select decodes under speculation", RIGHT, f"{CASES}::test_b44_select_scores_and_emits_nothing"
    ),
    _case("B46", "SGLang #9187", "structured output is stuck", RIGHT, f"{CASES}::test_b46_b49_json_in_a_row"),
    _case(
        "B48",
        "SGLang #24283",
        "a JSON request kills the others",
        RIGHT,
        f"{CASES}::test_b48_json_beside_a_plain_request",
    ),
    _case("B49", "SGLang #17576", "a crash after several JSON requests", RIGHT, f"{CASES}::test_b46_b49_json_in_a_row"),
    _case("B50", "SGLang #25388", "status 200 with an abort", RIGHT, f"{CASES}::test_b46_b49_json_in_a_row"),
    _case(
        "B51",
        "SGLang #21723",
        "the end of a grammar is passed over",
        RIGHT,
        f"{CASES}::test_b51_the_end_of_a_grammar_is_the_end",
        f"{NEIGHBOURS}::test_mixed_options",
    ),
    _case(
        "B53",
        "vLLM #36138",
        "the grammar is lost after a thought ends in a guess",
        RIGHT,
        f"{NEIGHBOURS}::test_a_grammar_begins_where_a_thought_ends_inside_a_guess",
    ),
    _case(
        "B55",
        "SGLang's front end",
        "the caller's stop list grows",
        RIGHT,
        f"{CASES}::test_b55_the_callers_stop_list_stays_as_it_is",
    ),
    _case(
        "B56",
        "SGLang #24051",
        "another vocabulary gives garbage",
        REFUSED,
        f"{PREFLIGHT}::test_a_draft_with_another_vocabulary",
        note="draft_vocabulary='auto' maps it",
    ),
    _case(
        "B58",
        "vLLM #42775",
        "missing rows are loaded as zeros",
        REFUSED,
        f"{VOCAB}::test_a_draft_that_lacks_ordinary_tokens_is_refused",
    ),
    _case(
        "B59",
        "vLLM #38174",
        "no unknown token: token 0 fills the draft's context",
        RIGHT,
        f"{VOCAB}::test_the_intersection_pairs_equal_spellings_one_to_one",
    ),
    _case(
        "B60",
        "Transformers #46124",
        "text drafts stutter",
        RIGHT,
        f"{VOCAB}::test_text_bridge_guesses_are_the_targets_own_cut",
    ),
    _case(
        "B62",
        "koboldcpp #2325",
        "a renamed special token blocks a pair",
        REFUSED,
        f"{VOCAB}::test_a_renamed_special_token_is_listed",
    ),
    _case(
        "B63",
        "own",
        "chat tokens in the target only; no tokenizer",
        REFUSED,
        f"{VOCAB}::test_chat_tokens_of_the_target_alone_need_rows_in_the_draft",
        f"{VOCAB}::test_missing_tokenizers_are_refused",
    ),
    _case("B64", "SGLang #10090", "a crash after a thousand requests", RIGHT, "engine/test_soak.py"),
    _case(
        "B65",
        "SGLang #7111",
        "the pool shrinks",
        RIGHT,
        f"{FINISH}::test_the_pool_is_as_empty_as_before",
        f"{STEERED}::test_aborts_at_any_time",
        note="page_size 1; larger pages are refused on a CPU",
    ),
    _case(
        "B67",
        "SGLang #6875",
        "the draft's memory is planned wrongly",
        RIGHT,
        "unit/test_plan.py",
        "engine/test_plan_memory.py",
    ),
    _case(
        "B68",
        "SGLang #32459",
        "the reserve evicts cached prefixes",
        RIGHT,
        "unit/test_plan.py::test_kv_and_reserve_by_hand",
        note="the memory plan says how many slots it takes; hits with and without were not counted",
    ),
    _case(
        "B70", "SGLang #25077", "topk > 1 with large pages", REFUSED, f"{PREFLIGHT}::test_contradicting_draft_lengths"
    ),
    _case(
        "B71",
        "SGLang #36197",
        "mixed chunk gives a misleading error",
        RIGHT,
        f"{PREFLIGHT}::test_a_free_launch_says_what_it_set",
    ),
    _case(
        "B72",
        "SGLang's source",
        "settings change in silence",
        RIGHT,
        f"{PREFLIGHT}::test_a_free_launch_says_what_it_set",
    ),
    _case("B74", "own", "no radix cache", RIGHT, f"{PARITY}::test_without_radix_cache_and_with_chunked_prefill"),
    _case(
        "B75",
        "SGLang #19897",
        "a prefix hit finds no draft KV",
        RIGHT,
        f"{CASES}::test_b75_hits_equal_the_cold_answers",
    ),
    _case(
        "B76", "SGLang #17338", "a hit is slower than a miss", RIGHT, f"{CASES}::test_b75_hits_equal_the_cold_answers"
    ),
    _case(
        "B77",
        "SGLang #32459",
        "reuse over turns is lost",
        RIGHT,
        f"{CASES}::test_b77_a_conversation_is_reused_turn_by_turn",
        f"{STEERED}::test_a_session_goes_on_where_it_stopped",
    ),
    _case("B80", "SGLang #2755", "a fork before any text", RIGHT, f"{CASES}::test_b80_forks_before_any_text"),
    _case(
        "B82",
        "SGLang #30549",
        "buffers sized for the first K",
        RIGHT,
        f"{CASES}::test_b91_the_length_that_was_asked_for",
        note="no buffer depends on K",
    ),
    _case(
        "B83",
        "sglang-glm53 #10",
        "K flaps around a pivot",
        RIGHT,
        "property/test_control_worst_case.py::test_acceptance_around_a_pivot_does_not_flap",
    ),
    _case(
        "B85",
        "SGLang #23289",
        "adaptive K is ignored in silence",
        RIGHT,
        f"{PARITY}::test_the_adaptive_controller_keeps_the_text",
    ),
    _case(
        "B86",
        "vllm-metal #463",
        "the drafter runs at K = 0",
        RIGHT,
        f"{CASES}::test_b86_without_guesses_the_draft_does_not_run",
    ),
    _case(
        "B88",
        "SGLang's docs",
        "a documented setting crashes",
        REFUSED,
        "unit/test_config.py::test_any_json_is_taken_or_refused_in_one_sentence",
    ),
    _case(
        "B89",
        "llama.cpp #25908",
        "no early stop by default",
        RIGHT,
        "property/test_control_worst_case.py::test_a_hostile_draft_costs_at_most_three_percent",
    ),
    _case(
        "B91",
        "Transformers #40739",
        "the draft length has no effect",
        RIGHT,
        f"{CASES}::test_b91_the_length_that_was_asked_for",
    ),
    _case("B92", "SGLang #11572", "an acceptance rate above 1", RIGHT, f"{CASES}::test_b92_b94_a_rate_is_a_share"),
    _case(
        "B94",
        "SGLang's source",
        "the rate divides by the launch-time K",
        RIGHT,
        f"{CASES}::test_b92_b94_a_rate_is_a_share",
        "unit/test_stats.py::test_definitions",
    ),
    _case(
        "B95",
        "llama.cpp #14104",
        "a rate without its coverage",
        RIGHT,
        "unit/test_stats.py::test_request_stats_by_hand",
    ),
    _case("B96", "llama.cpp #10455", "a repeated prompt inflates a benchmark", RIGHT, "unit/test_bench.py"),
    _case(
        "B97",
        "sglang-jax #1586",
        "a benchmark prints nothing for a number",
        RIGHT,
        "engine/test_bench.py::test_a_benchmark",
    ),
    _case(
        "B99",
        "SGLang #24795",
        "a broken draft is only slow",
        RIGHT,
        "unit/test_stats.py::test_low_acceptance_warns_once",
    ),
    _case(
        "B101",
        "SGLang #36528",
        "no draft path loads the target twice",
        REFUSED,
        f"{PREFLIGHT}::test_missing_and_empty_draft",
        f"{PREFLIGHT}::test_a_lora_adapter_is_no_draft",
    ),
    _case(
        "B102",
        "SGLang #10246",
        "contradicting draft lengths",
        REFUSED,
        f"{PREFLIGHT}::test_contradicting_draft_lengths",
    ),
    _case("B103", "SGLang #31281", "orphans and ports that stay taken", RIGHT, "engine/test_lifecycle.py"),
    _case(
        "B105",
        "SGLang #5647",
        "a start from a script's top level",
        RIGHT,
        "engine/test_lifecycle.py::test_the_owner_is_killed_while_the_server_runs",
        note="the server is an own command, nothing is spawned from the caller",
    ),
    _case("B106", "SGLang #10640", "n > 1 breaks a program", RIGHT, f"{CASES}::test_b106_three_samples_are_a_list"),
    _case(
        "B108",
        "SGLang's front end",
        "a fork knows nothing of its parent's variables' statistics",
        RIGHT,
        f"{FRONT_END}::test_what_a_variable_cost_is_known_where_it_was_generated",
        note="they stay with the state that made the variable",
    ),
    _case(
        "B109",
        "SGLang's front end",
        "programs cannot pass repetition_penalty, logit_bias, seed",
        REFUSED,
        f"{FRONT_END}::test_what_gen_does_not_know_is_a_type_error",
        note="a TypeError that names the option",
    ),
    _case(
        "B111",
        "dynamo #12688",
        "replacement characters in streams",
        RIGHT,
        f"{CASES}::test_b111_streams_are_whole_characters",
    ),
    _case("B112", "vLLM #30436", "parallel settings crash", REFUSED, f"{PREFLIGHT}::test_settings_without_a_path"),
]
