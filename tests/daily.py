"""The daily run: of tests with many slow cases, so many run each day; the others are marked `slow`.

`pytest -n auto` is to take at most six minutes on two cores. Cases are drawn by a checksum of their ids, so that each
device and each kind of case has its share, and every run has the same ones. `pytest -m slow` runs the rest.
"""

from __future__ import annotations

from collections import defaultdict
from zlib import crc32

import pytest

DAILY_CASES: dict[str, int] = {
    "compiler/optimize/test_dots.py::test_values_are_exact": 48,
    "compiler/test_linear_time.py::test_twice_the_steps_take_at_most_twice_the_work": 4,
    "compiler/kernel/test_partition_loops.py::test_the_results_are_the_same": 54,
    "devices/test_byte_dots.py::test_products_with_points": 16,
    "devices/test_byte_dots.py::test_quantized_products": 60,
    "devices/test_pair_dots.py::test_products": 32,
    "devices/test_tiles.py::test_layouts_and_tails": 28,
    "errors/test_wrong_arguments.py::test_a_wrong_argument_is_answered_with_a_sentence": 100,
    "fuzz/test_captures.py::test_random_programs_are_what_they_are_without_jit": 2,
    "fuzz/test_sizes.py::test_sizes_and_numbers_that_change": 24,
    "kernmill/array_api/test_namespace.py::test_expressions": 60,
    "kernmill/methods/test_special.py::test_values": 10,
    "kernmill/methods/test_special.py::test_gradients": 4,
    "kernmill/test_complex_tensor.py::test_functions": 8,
    "kernmill/test_fft.py::test_transforms_of_rows": 6,
    "kernmill/test_fft.py::test_gradients_are_the_adjoint_transform": 6,
    "kernmill/captures/test_fast_path.py::test_a_training_step_that_was_interrupted_was_done_or_not": 2,
    "kernmill/captures/test_fast_path.py::test_what_somebody_keeps_of_a_step_stays_as_it_is": 6,
    "kernmill/dist/test_collectives.py::test_all_reduce": 24,
    "kernmill/dist/test_mpi.py::test_a_captured_training_step_on_two_ranks": 0,
    "kernmill/dist/test_mpi.py::test_one_rank_that_ends_ends_all": 2,
    "kernmill/functional/test_custom.py::test_less_memory_and_the_same_gradients": 1,
    "kernmill/functional/test_vectorize.py::test_as_a_loop": 20,
    "kernmill/functional/test_vectorize.py::test_gradients_flow_through": 1,
    "kernmill/llm/arch/test_dense.py::test_a_file_is_the_model": 2,
    "kernmill/llm/arch/test_dense.py::test_logits_are_those_of_numpy": 12,
    "kernmill/llm/arch/test_bert.py::test_vectors_are_those_of_numpy": 3,
    "kernmill/llm/arch/test_bert.py::test_documents_are_ranked": 1,
    "kernmill/llm/arch/test_compared.py::test_every_tensor_counts": 12,
    "kernmill/llm/arch/test_recurrent.py::test_an_engine_writes_the_same": 2,
    "kernmill/llm/arch/test_recurrent.py::test_chunks_are_single_tokens": 4,
    "kernmill/llm/arch/test_recurrent.py::test_layers_on_two_devices": 1,
    "kernmill/llm/arch/test_recurrent.py::test_sequences_are_as_alone": 2,
    "kernmill/llm/arch/test_recurrent.py::test_some_on_opencl": 1,
    "kernmill/llm/test_bench.py::test_words_of_llama_bench": 0,
    "kernmill/llm/test_ranks.py::test_blocks_are_divided_between_columns": 0,
    "kernmill/llm/test_ranks.py::test_logits_are_those_of_one_rank": 0,
    "kernmill/llm/test_train.py::test_every_architecture_learns": 8,
    "kernmill/methods/test_reduce.py::test_long_sums_lose_no_digits": 6,
    "kernmill/methods/test_scan.py::test_long_axes_are_merged": 8,
    "kernmill/methods/test_scan.py::test_running_sums_along_any_axis": 14,
    "kernmill/methods/test_segments.py::test_sums_of_what_names_a_place": 14,
    "kernmill/methods/test_segments.py::test_the_last_that_names_a_place": 14,
    "kernmill/quant/test_floats.py::test_products_and_rows": 12,
    "kernmill/quant/test_grids.py::test_tables_are_made_before_a_capture": 7,
    "kernmill/quant/test_joining.py::test_blocks": 3,
    "kernmill/quant/test_k_types.py::test_special_values_are_written": 4,
    "kernmill/quant/test_product.py::test_error_is_bounded": 14,
    "kernmill/quant/test_product.py::test_few_rows_of_points": 5,
    "kernmill/quant/test_product.py::test_groups_of_any_size_give_the_same_products": 5,
    "kernmill/quant/test_product.py::test_interleaved_rows_are_the_same_values": 30,
    "kernmill/quant/test_product.py::test_products_of_all_forms": 6,
    "kernmill/quant/test_product.py::test_rows_of_one_block_whose_bytes_hold_codes_of_several_loops": 0,
    "kernmill/quant/test_product.py::test_rows_that_are_no_whole_group_are_filled_up": 8,
    "kernmill/quant/test_tensor.py::test_linear": 6,
    "kernmill/quant/test_tensor.py::test_rows_are_laid_side_by_side_piece_by_piece": 2,
    "kernmill/quant/test_tensor.py::test_what_interleaved_rows_take_is_known_before": 16,
    "kernmill/quant/test_matrix_unit.py::test_quantized_weights": 4,
    "kernmill/quant/test_decoded.py::test_laid_piece_by_piece": 8,
    "kernmill/quant/test_decoded.py::test_the_same_values_on_every_device": 4,
    "kernmill/torch_backend/test_dynamo.py::test_eval_is_that_of_eager": 3,
    "kernmill/torch_backend/test_dynamo.py::test_training_is_that_of_eager": 3,
    "kernmill/torch_backend/test_dynamo.py::test_functions": 10,
    "kernmill/test_autograd.py::test_a_gradient_that_is_the_same_for_all_rows_is_added_once": 4,
    "kernmill/test_gradients.py::test_a_gradient_is_the_slope": 110,
    "kernmill/test_programs_against_torch.py::test_gradients_are_pytorchs": 8,
    "kernmill/test_programs_against_torch.py::test_views_and_writes_are_pytorchs": 12,
    "runtime/test_interrupts.py::test_ctrl_c_is_raised_soon": 5,
    "test_bench.py::test_kernmill_is_right_at_a_tiny_size": 40,
    "test_bench_llama.py::test_a_random_file_is_a_model": 2,
    "test_bench_programs.py::test_captured_and_eager_calls_give_torchs_values": 8,
    "test_bench_programs.py::test_the_command_measures_every_mode_of_a_program": 0,
    "test_examples.py::test_a_story_model": 0,
    "test_examples.py::test_mnist_on_a_part": 0,
}
"""Functions, by file below tests/, with the number of their cases that run each day."""


def mark_slow(items: list[pytest.Item]) -> None:
    """Mark the cases that do not run each day."""
    found: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        name = item.nodeid.partition("[")[0].removeprefix("tests/")
        if name in DAILY_CASES:
            found[name].append(item)
    for name, cases in found.items():
        for item in sorted(cases, key=lambda case: crc32(case.nodeid.encode()))[DAILY_CASES[name] :]:
            item.add_marker("slow")
