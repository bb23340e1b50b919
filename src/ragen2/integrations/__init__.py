"""Bridges to other frameworks; each file is imported by those who have that framework."""
