"""The GPU engine: decoding captured in CUDA graphs over Triton kernels."""
