#!/usr/bin/env python3
"""Times PyTorch's own attention at the preview's shapes: the figures that ours stands against.

One call for each guidance branch, [1, 24, L, 128] bf16, no mask, by the cuDNN kernel and by
FlashAttention; once from contiguous heads, once from the layout of the projections (token-major, which
the kernels read through strides).  Prints milliseconds for both branches together, and TFLOP/s.

    attention_torch.py [seconds of warm-up] [branch lengths ...]
"""
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

N_HEADS, HEAD_DIM = 24, 128
PREVIEW_272P = [15015, 14601]
BACKENDS = [("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)]


def make_branches(lengths, is_token_major):
    branches = []
    for length in lengths:
        shape = (1, length, N_HEADS, HEAD_DIM) if is_token_major else (1, N_HEADS, length, HEAD_DIM)
        qkv = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
        branches.append([x.transpose(1, 2) if is_token_major else x for x in qkv])
    return branches


def time_once(branches):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for q, k, v in branches:
        torch.nn.functional.scaled_dot_product_attention(q, k, v)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def main():
    warm_ms = 1e3 * (float(sys.argv[1]) if len(sys.argv) > 1 else 3.0)
    lengths = [int(x) for x in sys.argv[2:]] or PREVIEW_272P
    flop = sum(4 * HEAD_DIM * N_HEADS * length * length for length in lengths)
    for name, backend in BACKENDS:
        for layout in ("head-major", "token-major"):
            branches = make_branches(lengths, layout == "token-major")
            with sdpa_kernel(backend):
                spent = 0.0
                while spent < warm_ms:
                    spent += time_once(branches)
                times = sorted(time_once(branches) for _ in range(30))
            median = times[len(times) // 2]
            print(f"{name:6s} {layout:12s} {median:8.3f} ms median, {times[0]:8.3f} best, "
                  f"{flop / median * 1e-9:6.1f} TFLOP/s", flush=True)


if __name__ == "__main__":
    main()
