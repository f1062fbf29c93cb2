"""What `model.options` of an ONNX model may hold. Executor side; nothing pickles.

ONNX Runtime takes any session entry without a word, and looks at a provider's options on that provider's device only.
So a misspelt one is refused here, on every machine. Both lists are those of ONNX Runtime 1.31, without what belongs to
sparkinfer (device, streams, files that it writes) and what makes models instead of running them.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from sparkinfer.core.errors import ModelError

__all__ = ["PROVIDER_OPTIONS", "SESSION_ENTRIES", "SESSION_KEY", "check_options", "entry_value"]

SESSION_KEY = "session"
"""The option that holds session entries."""

PROVIDER_OPTIONS = (
    "arena_extend_strategy",
    "cudnn_conv1d_pad_to_nc1d",
    "cudnn_conv_algo_search",
    "cudnn_conv_use_max_workspace",
    "enable_cuda_graph",
    "enable_skip_layer_norm_strict_mode",
    "fuse_conv_bias",
    "gpu_mem_limit",
    "miopen_conv_exhaustive_search",
    "miopen_conv_use_max_workspace",
    "prefer_nhwc",
    "sdpa_kernel",
    "tunable_op_enable",
    "tunable_op_max_tuning_duration_ms",
    "tunable_op_tuning_enable",
    "use_ep_level_unified_stream",
    "use_tf32",
)
"""Of the CUDA and ROCm providers."""

SESSION_ENTRIES = (
    "mlas.disable_kleidiai",
    "mlas.qnbit.force_fp32",
    "mlas.use_lut_gemm",
    "optimization.constant_folding_max_output_size_in_bytes",
    "optimization.disable_specified_optimizers",
    "optimization.enable_cast_chain_elimination",
    "optimization.enable_gelu_approximation",
    "session.allow_released_opsets_only",
    "session.disable_aot_function_inlining",
    "session.disable_cpu_ep_fallback",
    "session.disable_double_qdq_remover",
    "session.disable_prepacking",
    "session.disable_qdq_constant_folding",
    "session.disable_quant_qdq",
    "session.dynamic_block_base",
    "session.enable_dq_matmulnbits_fusion",
    "session.enable_quant_qdq",
    "session.enable_quant_qdq_cleanup",
    "session.force_spinning_stop",
    "session.graph_optimizations_loop_level",
    "session.inter_op.allow_spinning",
    "session.inter_op.spin_backoff_max",
    "session.inter_op.spin_duration_us",
    "session.intra_op.allow_spinning",
    "session.intra_op.spin_backoff_max",
    "session.intra_op.spin_duration_us",
    "session.intra_op_thread_affinities",
    "session.prepack.enable_parallel",
    "session.qdq_matmulnbits_accuracy_level",
    "session.qdq_matmulnbits_block_size",
    "session.qdqisint8allowed",
    "session.set_denormal_as_zero",
    "session.strict_shape_type_inference",
    "session.use_device_allocator_for_initializers",
    "session.use_env_allocators",
    "session.x64quantprecision",
)


def check_options(options: Mapping[str, Any]) -> None:
    """Refuses what ONNX Runtime would ignore.

    Args:
        options: `model.options`.

    Raises:
        ModelError: an option or a session entry that is not known, or no map of session entries.
    """
    for name in options:
        if name not in (SESSION_KEY, *PROVIDER_OPTIONS):
            raise _unknown(name, "model.options", "option", (SESSION_KEY, *PROVIDER_OPTIONS))
    entries = options.get(SESSION_KEY, {})
    key = f"model.options.{SESSION_KEY}"
    if not isinstance(entries, Mapping):
        raise ModelError(
            f"must be a block of ONNX Runtime's session configuration entries, got {entries!r}",
            key=key,
            hint='for example {session.intra_op.allow_spinning: "0"}',
        )
    for name in entries:
        if name not in SESSION_ENTRIES:
            raise _unknown(name, key, "session entry", SESSION_ENTRIES)


def entry_value(value: object) -> str:
    """As ONNX Runtime wants it: true and false are 1 and 0."""
    return str(int(value)) if isinstance(value, bool) else str(value)


def _unknown(name: object, key: str, what: str, known: Sequence[str]) -> ModelError:
    close = difflib.get_close_matches(str(name), known, n=3)
    return ModelError(
        f"ONNX Runtime has no {what} {str(name)!r}",
        key=key,
        allowed=known,
        hint=f"did you mean {' or '.join(close)}?" if close else "remove it",
    )
