"""vLLM engines and servers."""

from stepprof.remote.vllm.arguments import engine_args, environment, serve_args

__all__ = ["engine_args", "environment", "serve_args"]
