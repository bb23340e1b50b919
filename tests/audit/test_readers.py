"""Every format gives the numbers that the same rollouts give in ours."""

from __future__ import annotations
