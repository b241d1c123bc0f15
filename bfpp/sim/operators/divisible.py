"""Divisibility of a model over a configuration's devices."""

from __future__ import annotations

from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.settings.attention import Attention, ContextExchange
from bfpp.sim.operators.operators import Execution

NARROW = "needs a precision with narrow GEMMs, such as fp8-block"


def require_divisible(execution: Execution) -> None:
    """Raise `InvalidConfiguration` for indivisible sizes: heads, the sequence, experts."""
    for field, reason in _faults(execution):
        raise InvalidConfiguration(field, reason)


def _faults(execution: Execution) -> list[tuple[str, str]]:
    model, tp, cp, ep = execution.model, execution.tp, execution.cp, execution.ep
    faults = []
    if execution.quantisation is None:
        narrower = {
            "quantised_dispatch": execution.routing.quantised,
            "quantised_attention": execution.quantised_attention,
            "quantised_head": execution.quantised_head,
        }
        faults += [(option, NARROW) for option, asked in narrower.items() if asked]
    if execution.quantised_activation:
        faults += [("quantised_activation", reason) for reason in _not_narrow(execution)]
    if execution.quantised_attention and execution.attention is Attention.UNFUSED:
        faults.append(("quantised_attention", "needs fused attention (--attention fused)"))
    if model.heads % tp:
        faults.append(("tp", f"{tp} does not divide {model.name}'s {model.heads} heads"))
    if cp > 1:
        faults += _context_faults(execution)
    if model.experts is None:
        if ep > 1:
            faults.append(("ep", f"{model.name} has no experts"))
        return faults
    if model.experts.routed % ep:
        faults.append(("ep", f"{ep} does not divide {model.name}'s {model.experts.routed} experts"))
    if tp > 1 and not execution.sequence_parallel:
        faults.append(("tp", "experts with tensor parallelism need --sequence-parallel"))
    if execution.routing.imbalance < 1:
        faults.append(("expert_imbalance", "must be at least 1: the busiest device over the mean"))
    if execution.routing.capacity == 0:
        faults.append(("capacity_factor", "must be more than 0"))
    if execution.routing.beside_shared and model.experts.shared is None:
        faults.append(("shared_overlap", f"{model.name} has no shared experts"))
    if execution.routing.beside_shared and execution.routing.interleaved:
        faults.append(
            ("shared_overlap", "is part of --microbatch-overlap, and does not go with it")
        )
    return faults


def _not_narrow(execution: Execution) -> list[str]:
    """Why the input of the activation cannot be kept in 8 bits."""
    reasons = []
    if not execution.model.gated:
        reasons.append(f"needs a gated activation, and {execution.model.name} has none")
    if execution.model.experts is not None and execution.routing.fused_experts:
        reasons.append("does not go with --fused-experts, which have no kernel for the activation")
    return reasons


def _context_faults(execution: Execution) -> list[tuple[str, str]]:
    model, cp = execution.model, execution.cp
    faults = []
    if execution.attention is Attention.UNFUSED:
        faults.append(("cp", "context parallelism needs fused attention (--attention fused)"))
    if execution.exchange is ContextExchange.ALL_TO_ALL:
        heads, devices = model.kv_heads or model.heads, execution.tp * cp
        if heads % devices:
            faults.append(("cp", f"tp x cp = {devices} does not divide {heads} heads of keys"))
        chunks = cp
    else:
        # Each device has an early and a late chunk, so that a causal mask is balanced.
        chunks = 2 * cp if model.causal else cp
    chunks *= execution.tp if execution.sequence_parallel else 1
    if model.sequence % chunks:
        faults.append(("cp", f"a sequence of {model.sequence} cannot be divided into {chunks}"))
    return faults
