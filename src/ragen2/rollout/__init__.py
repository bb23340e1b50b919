"""Rollout: prompts in, groups of trajectories out."""

from ragen2.rollout.play import Task, play
from ragen2.rollout.reply import ReplyFormat, parse_reply
from ragen2.rollout.settings import Rollout

__all__ = ["ReplyFormat", "Rollout", "Task", "parse_reply", "play"]
