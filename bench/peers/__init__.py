"""The peers of Tamis in plain PyTorch, and what measures them and Tamis (bench/peers.py)."""
