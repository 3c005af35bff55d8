"""All that exists for speed: the lane axis, compilation, transfers, fused kernels."""
