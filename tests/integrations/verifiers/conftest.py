"""These tests need verifiers, which has a venv of its own: `make test-peers` runs them there."""

from __future__ import annotations

import sys
from importlib.metadata import distributions
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

# The rest of the suite runs without it; tests/integrations/test_exports_peer.py says what is skipped there.
IS_THERE = any(one.name == "verifiers" for one in distributions())
collect_ignore_glob = [] if IS_THERE else ["test_*.py"]
