"""Names that must be known before verl is imported."""

PLUGIN = "ragen2.integrations.verl.plugin"
DEVICE = "RAGEN2_VERL_DEVICE"
"""Environment variable; ``cpu`` makes verl run on processors."""
