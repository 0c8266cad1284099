"""The sampling side of the verl core: the CPU rollout server, vLLM with Top-K, and the agent loop between them."""
