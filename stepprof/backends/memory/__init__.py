"""The memory backend: snapshots of CUDA's caching allocator."""
