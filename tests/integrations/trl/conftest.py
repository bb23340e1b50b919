"""These tests need TRL, which has a venv of its own: `make test-peers` runs them there."""

from __future__ import annotations

import os
import sys
from importlib.metadata import distributions
from pathlib import Path

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parent))

# The rest of the suite runs without TRL; tests/integrations/test_trl_peer.py says what is skipped there.
HAS_TRL = any(one.name == "trl" for one in distributions())
collect_ignore_glob = [] if HAS_TRL else ["test_*.py"]
