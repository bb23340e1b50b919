"""TRL's GRPO with the SNR filter and collapse diagnostics: ``SNRGRPOTrainer`` for ``GRPOTrainer``.

Our environments come along, as a ``rollout_func`` (``EnvRollout``) or as an ``environment_factory``
(``env_tools``). TRL's hooks are not stable, so versions that were not tested are refused.
"""

from ragen2.integrations.versions import require_tested

require_tested("trl")

from ragen2.integrations.trl.env_rollout import EnvRollout, env_return  # noqa: E402 - after the check
from ragen2.integrations.trl.env_tools import ToolEnvironment, env_tools, tool_dataset  # noqa: E402
from ragen2.integrations.trl.settings import SNRSettings  # noqa: E402
from ragen2.integrations.trl.trainer import SNRGRPOTrainer  # noqa: E402

__all__ = [
    "EnvRollout",
    "SNRGRPOTrainer",
    "SNRSettings",
    "ToolEnvironment",
    "env_return",
    "env_tools",
    "tool_dataset",
]
