"""The name under which verifiers finds our environments: ``vf-eval ragen2-verifiers``.

verifiers imports a taskset by the name of a top-level module; all of it is in ``ragen2.integrations``.
"""

from ragen2.integrations.verifiers import RagenEnv, RagenTaskset

__all__ = ["RagenEnv", "RagenTaskset"]
