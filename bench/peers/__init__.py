"""The peers of Tamis in plain PyTorch, and what measures them beside it (bench/peers.py)."""
