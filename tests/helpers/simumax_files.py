"""System files in SimuMax's form, small ones of our own."""

from __future__ import annotations

from typing import Any


def system(*, pcie: bool = False) -> dict[str, Any]:
    """A node of four GPUs, with a few shapes; attention is measured of even and uneven heads."""
    collectives = {
        "all_reduce": {"scale": 2, "offset": -1, "efficient_factor": 0.7, "latency_us": 5.0},
        "all_gather": {"scale": 1, "offset": -1},
        "reduce_scatter": {"scale": 1, "offset": -1, "efficient_factor": 0.6},
    }
    inside = {
        "bandwidth": {"efficient_factor": 0.65, "gbps": 200, "latency_us": 8.0},
        "op": collectives,
    }
    between = {"bandwidth": {"efficient_factor": 0.9, "gbps": 100, "latency_us": 20}, "op": {}}
    heads = "batch=1, seq_len=4096, head_num={}, kv_head_num={}, qk_head_dim={}, v_head_dim=128"
    return {
        "sys_name": "a100_of_ours",
        "num_per_node": 4,
        "accelerator": {
            "backend": "cuda",
            "mem_gbs": 80,
            "op": {
                "default": {"tflops": 312, "efficient_factor": 0.7},
                "matmul": {
                    "tflops": 312,
                    "efficient_factor": 0.7,
                    "accurate_efficient_factor": {
                        "b=1, m=4096, k=4096, n=4096, layout=TN, accumulate=False": 0.7,
                        "b=1, m=4096, k=1024, n=8192, layout=NN, accumulate=False": 0.68,
                        "b=1, m=4096, k=4096, n=1024, layout=NT, accumulate=True": 0.6,
                    },
                },
                "sdp_fwd": {
                    "tflops": 312,
                    "accurate_efficient_factor": {
                        heads.format(32, 32, 128): 1.1,
                        heads.format(32, 8, 128): 1.0,
                        heads.format(32, 32, 192): 0.9,
                    },
                },
                "sdp_bwd": {
                    "tflops": 312,
                    "accurate_efficient_factor": {heads.format(32, 32, 128): 0.8},
                },
                "fp8_matmul": {"tflops": 624, "efficient_factor": 0.7},
            },
            "bandwidth": {
                "default": {"efficient_factor": 0.9, "gbps": 1600, "latency_us": 40},
            },
            "mode": "roofline",
        },
        "networks": {
            "intra_with_pcie": pcie,
            "intra_node_pcie_8x" if pcie else "high_intra_node": inside,
            "inter_node": between,
        },
    }
