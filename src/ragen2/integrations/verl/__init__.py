"""Run files on verl: our environments, filter and diagnosis inside its trainer, on Ray, FSDP2 and vLLM.

Nothing here is imported by the rest of the package but by ``ragen2 train --engine verl``.
"""
