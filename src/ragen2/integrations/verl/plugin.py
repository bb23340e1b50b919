"""What verl loads in each of its processes: entry point ``ragen2`` of its group ``verl.plugins``.

It makes our trainer, agent loop and rollout known by name. In a job of ``ragen2 train --engine verl`` it also
opens critics our way and, without a GPU, brings a platform for processors.
"""

from __future__ import annotations

import logging
import os

from ragen2.errors import DependencyError
from ragen2.integrations.verl.plugin_names import DEVICE
from ragen2.integrations.verl.versions import require_verl

logger = logging.getLogger(__name__)


def load() -> None:
    """Register everything; a verl that was not tested is told of in one line and left alone."""
    try:
        require_verl()
    except DependencyError as error:
        logger.warning("%s", error)
        return
    device = os.environ.get(DEVICE)
    if device == "cpu":
        from ragen2.integrations.verl import cpu

        cpu.install()
    if device:
        from ragen2.integrations.verl import critic

        critic.install("sdpa" if device == "cpu" else "flash_attention_2")
    # Each of them registers itself: any may be the module whose import brought verl, and be half done.
    from ragen2.integrations.verl import agent_loop, hf_rollout, trainer  # noqa: F401


load()
