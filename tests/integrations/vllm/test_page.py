"""The command on the page about vLLM is one that vLLM's own parser takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from ragen2.backends.vllm.policy import TESTED
from ragen2.backends.vllm.worker import EXTENSION

PAGE = (Path(__file__).parents[3] / "docs" / "integrations" / "vllm.md").read_text()


def test_vllm_takes_the_command_of_the_page():
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    (block,) = re.findall(r"^```bash\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    words = shlex.split(block.replace("\\\n", " "))
    assert words[:3] == ["VLLM_SERVER_DEV_MODE=1", "vllm", "serve"]
    parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(words[3:])
    assert parsed.worker_extension_cls == EXTENSION
    assert parsed.served_model_name == ["tiny"]


def test_the_version_of_the_page_is_the_tested_one():
    assert f"Tested with vLLM {TESTED};" in PAGE
