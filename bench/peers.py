#!/usr/bin/env python3
"""Measures Tamis and its peers: bench/peers.py --help, bench/README.md."""

import sys

from peers.command import main

if __name__ == "__main__":
    sys.exit(main())
