"""Names that must be known before verl is imported."""

PLUGIN = "ragen2.integrations.verl.plugin"
DEVICE = "RAGEN2_VERL_DEVICE"
"""Environment variable of our own jobs, ``cuda`` or ``cpu``: other jobs of verl are left as they are."""
