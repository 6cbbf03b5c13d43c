#!/usr/bin/env python3
"""Times parts of the reference's preview layer on one GPU, at the shapes of a 272p step.

The reference (github.com/SandAI-org/MAGI-2-preview, folder `inference/`) is fetched by whoever runs this
and is not part of magi2.c.  What it needs of other packages is replaced by empty modules: only its
Triton kernels and the functions that it compiles itself run here.  Weights and inputs are random;
dense products are cuBLAS's through torch.  Prints milliseconds, the median of the passes.

    reference_parts.py REFERENCE [tokens] [passes]
"""
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types

import torch

N_VIDEO, N_AUDIO = 28672, 500
HIDDEN, N_STREAMS, N_HEADS, N_EXPERTS, TOP_K, WIDTH = 3072, 4, 12, 256, 6, 1280


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Packages of the reference's surroundings that are not installed: every name is a pass-through."""

    roots = ("flash_attn_interface", "magi_attn_extensions", "magi_compiler", "inference.common",
             "inference.infra", "inference.utils")

    def __init__(self):
        if importlib.util.find_spec("einops") is None:
            self.roots += ("einops",)

    def find_spec(self, name, path=None, target=None):
        if name.startswith(self.roots):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: self.stand_in(name)
        return module

    def exec_module(self, module):
        pass

    @staticmethod
    def stand_in(name):
        if name.startswith("__"):
            raise AttributeError(name)

        def decorator(*args, **kwargs):
            if len(args) == 1 and callable(args[0]) and not kwargs:
                return args[0]
            return lambda function: function

        return decorator


def median_ms(function, n_passes):
    for _ in range(2):
        function()
    times = []
    for _ in range(n_passes):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        function()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def randn(*shape, scale=1.0, dtype=torch.bfloat16):
    return torch.randn(shape, device="cuda", dtype=torch.float32).mul_(scale).to(dtype)


def experts(n, n_passes):
    from inference.flash_mh_moe import (compute_topk_probs_and_indices, flash_mh_moe_fwd,
                                        flash_mh_moe_global_sort)

    head_dim = HIDDEN // N_HEADS
    x = randn(n, N_HEADS, head_dim)
    gate = randn(N_HEADS, N_EXPERTS, head_dim, scale=head_dim**-0.5, dtype=torch.float32)
    bias = randn(N_HEADS, N_EXPERTS, scale=0.05, dtype=torch.float32)
    w_gate, w_up = (randn(N_HEADS * N_EXPERTS, head_dim, WIDTH, scale=head_dim**-0.5) for _ in range(2))
    w_down = randn(N_HEADS * N_EXPERTS, WIDTH, head_dim, scale=WIDTH**-0.5)

    def choose():
        logits = torch.einsum("shd,hed->hse", x.float(), gate)
        return compute_topk_probs_and_indices(router_logits=logits, top_k=TOP_K, score_func="sigmoid",
                                              expert_bias=bias, route_norm=True)

    probs, idx = choose()

    def sort():
        return flash_mh_moe_global_sort(topk_probs=probs, topk_indices=idx, num_experts=N_EXPERTS)

    ids, sorted_probs, offsets = sort()

    def run():
        return flash_mh_moe_fwd(x=x, gather_ids=ids, probs=sorted_probs, expert_offsets=offsets,
                                W_gate=w_gate, W_up=w_up, W_down=w_down)

    yield "routing: scores and choice", median_ms(choose, n_passes)
    yield "routing: sort", median_ms(sort, n_passes)
    yield "experts and scatter (Triton)", median_ms(run, n_passes)


def rows(n, n_passes):
    from inference.model import magi2_preview as reference

    torch.backends.cuda.matmul.allow_tf32 = False
    s, x, o = randn(n, N_STREAMS, HIDDEN), randn(n, HIDDEN), randn(n, HIDDEN)
    handler = reference.MHCHandler(N_STREAMS, HIDDEN)
    norm = reference.MultiModalityRMSNorm(N_STREAMS * HIDDEN, device="cuda", out_dtype=torch.float32)
    phi = randn(N_STREAMS * HIDDEN, 24, scale=0.01, dtype=torch.float32)
    alpha = torch.ones(1, device="cuda")
    bias4, bias44 = torch.zeros(4, device="cuda"), torch.zeros(4, 4, device="cuda")

    def coefficients():
        return handler.apply_norm_and_compute_h_(s.view(n, -1), norm, phi)

    pre, post, res = coefficients()
    h_post, h_res = handler.compute_hpost_and_hres((alpha, bias4, post), (alpha, bias44, res),
                                                   out_dtype=torch.bfloat16)

    def open_streams():
        c = coefficients()
        handler.compute_and_apply_hpre(s, (alpha, bias4, c[0]))
        handler.compute_hpost_and_hres((alpha, bias4, c[1]), (alpha, bias44, c[2]), out_dtype=torch.bfloat16)

    pre_norm = reference.MultiModalityRMSNorm(HIDDEN, device="cuda")
    f = randn(n, 2 * WIDTH)
    yield "mHC: norm, phi, coefficients, read", median_ms(open_streams, n_passes)
    yield "mHC: write", median_ms(lambda: handler.apply_hpost_and_hres(s, o, h_post, h_res), n_passes)
    yield "norm of a row of 3072", median_ms(lambda: pre_norm(x), n_passes)
    yield "swiglu7 to 1280", median_ms(lambda: reference.swiglu7(f), n_passes)


def products(n, n_passes):
    for n_out, k in ((9216, 3072), (3072, 3072), (2560, 3072), (3072, 1280), (16384, 3072), (3072, 8192)):
        x, w = randn(n, k), randn(n_out, k, scale=k**-0.5)
        yield f"product {k}->{n_out} (cuBLAS)", median_ms(lambda: torch.nn.functional.linear(x, w), n_passes)


def main():
    sys.path.insert(0, sys.argv[1])
    sys.meta_path.insert(0, Absent())
    n = int(sys.argv[2]) if len(sys.argv) > 2 else N_VIDEO + N_AUDIO + 444
    n_passes = int(sys.argv[3]) if len(sys.argv) > 3 else 9
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {n} tokens, medians of {n_passes}")
    with torch.no_grad():
        for part in (products, experts, rows):
            try:
                for name, ms in part(n, n_passes):
                    print(f"{name:40} {ms:9.3f} ms", flush=True)
            except Exception as fault:  # one part that does not run must not hide the others
                print(f"{part.__name__}: {type(fault).__name__}: {fault}", flush=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
